// C++'s operators in every form, exceptions and containers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
static void *volatile hidden;
static void *hide(void *p) { hidden = p; return hidden; }

static int handled;
static void handler() {
    if (++handled == 3) std::set_new_handler(nullptr);
}
struct alignas(256) Wide { char bytes[300]; };

int main() {
    size_t volatile huge = SIZE_MAX / 2;
    auto one = std::align_val_t(128);
    for (int i = 0; i < 1000; i++) {
        ::operator delete(hide(::operator new(i)));
        ::operator delete[](hide(::operator new[](i)));
        ::operator delete(hide(::operator new(i, std::nothrow)), std::nothrow);
        ::operator delete[](hide(::operator new[](i, std::nothrow)), std::nothrow);
        ::operator delete(hide(::operator new(i * 9)), (size_t)i * 9);
        ::operator delete[](hide(::operator new[](i * 90)), (size_t)i * 90);
        void *p = hide(::operator new(i, one));
        CHECK((uintptr_t)p % 128 == 0);
        ::operator delete(p, one);
        ::operator delete[](hide(::operator new[](i, one)), one);
        ::operator delete(hide(::operator new(i, one)), (size_t)i, one);
        ::operator delete[](hide(::operator new[](i, one)), (size_t)i, one);
        ::operator delete(hide(::operator new(i, one, std::nothrow)), one, std::nothrow);
        ::operator delete[](hide(::operator new[](i, one, std::nothrow)), one, std::nothrow);
    }
    for (int form = 0; form < 4; form++) {
        bool caught = false;
        try {
            if (form == 0) hide(::operator new(huge));
            if (form == 1) hide(::operator new[](huge));
            if (form == 2) hide(::operator new(huge, one));
            if (form == 3) hide(::operator new[](huge, one));
        } catch (const std::bad_alloc &) {
            caught = true;
        }
        CHECK(caught);
    }
    CHECK(!hide(::operator new(huge, std::nothrow)) && !hide(::operator new[](huge, std::nothrow)));
    CHECK(!hide(::operator new(huge, one, std::nothrow)));
    std::set_new_handler(handler);
    try { hide(::operator new(huge)); } catch (const std::bad_alloc &) { handled += 100; }
    CHECK(handled == 103);

    std::map<std::string, std::vector<std::unique_ptr<Wide>>> map;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2000; i++) {
        map[std::to_string(i % 300) + std::string(i % 70, 'x')].push_back(std::make_unique<Wide>());
        CHECK((uintptr_t)map.begin()->second.back().get() % 256 == 0);
    }
    for (int i = 0; i < 4; i++) threads.emplace_back([] {
        for (int k = 0; k < 2000; k++) try { throw std::string(k % 100, 'y'); } catch (const std::string &s) { CHECK(s.size() == (size_t)k % 100); }
    });
    for (auto &thread : threads) thread.join();
    printf("%zu\n", map.size());
}
