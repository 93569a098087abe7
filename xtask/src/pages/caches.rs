//! windlass-umem(3): object caches of `libwindlass_alloc.so`.
//!
//! # Model
//! Prototypes are read from the header, so that the page shows what a program compiles.

use super::Page;
use super::roff::Roff;

const HEADER: &str = include_str!("../../../crates/programs/alloc/include/windlass/umem.h");

/// The page, then its calls.
const NAMES: &[&str] = &[
    "windlass-umem",
    "umem_cache_create",
    "umem_cache_destroy",
    "umem_cache_alloc",
    "umem_cache_free",
    "umem_alloc",
    "umem_zalloc",
    "umem_alloc_align",
    "umem_free",
    "umem_free_align",
    "umem_nofail_callback",
    "umem_reap",
];

const DESCRIPTION: &[&str] = &[
    "The interface of illumos' libumem. A program that is linked with libwindlass_alloc.so has its malloc, too; windlass-run(1) preloads the same library into \
     other programs.",
    "umem_cache_create() makes a cache of objects of size bytes, at most 2 MiB, at multiples of align: a power of two up to 64 KiB. With align 0 an object is aligned to 16 bytes if its size is a multiple of 16, \
     else to 8. The first 31 bytes of the name are kept; bytes that are not printable ASCII become question marks. The three callbacks may be NULL, and source must be. cflags is 0 or a sum: with UMC_NOMAGAZINE free objects go \
     straight back to their slab; with UMC_NODEBUG or UMC_NOTOUCH debugging words have no effect; UMC_NOHASH has none.",
    "umem_cache_alloc() returns an object in its constructed state; umem_cache_free() takes it back in that state. The constructor gets private_data and the flags for allocations of its own. It is called when an object first leaves its \
     slab, for a batch of up to 64 objects at a time; not 0 means that it could not, and the object goes back. An object stays constructed while it is free. The destructor is called before its memory is \
     given back: when a whole slab is free, or when the cache is destroyed. With a debugging word of WINDLASS_MEMORY the constructor is called at each allocation, and the destructor at each free. Callbacks are called without a lock, on any thread that allocates or frees objects of the cache, ends, or calls malloc_trim(3).",
    "umem_cache_destroy() destructs what is free and forgets the cache. All objects must have been freed, and no other thread may use the cache; objects that are out end the program with a sentence, which names some of them with a debugging word. A child of fork(2) may destroy caches of which the parent's other \
     threads had objects: their memory stays allocated. It must not be called by a callback of the same cache.",
    "umem_alloc() allocates as malloc(3), umem_zalloc() as calloc(3), and umem_alloc_align() at a multiple of align. They return NULL for 0 bytes. umem_free() and umem_free_align() take the size that was asked for. umem_free() names another size if \
     that has another class, or, with a debugging word of WINDLASS_MEMORY, if it differs at all.",
    "Without memory, the reclaim callbacks of all caches are called once, by one thread at a time, to free objects that the program can do without; malloc(3) does that, too. Then UMEM_DEFAULT returns NULL. UMEM_NOFAIL calls the callback that umem_nofail_callback() \
     has set. If it returns UMEM_CALLBACK_RETRY, the call goes on; with UMEM_CALLBACK_EXIT(status), or without a callback (status 255), the process exits. It may also leave by longjmp(3) or pthread_exit(3).",
    "umem_reap() calls the reclaim callbacks, and gives free memory back to the kernel as malloc_trim(3).",
    "The first 21 caches of objects up to 64 KiB have magazines: umem_cache_alloc() and umem_cache_free() take 13 and 29 instructions, and no lock. Others take the cache's lock each time. A cache that is destroyed leaves its magazines to the next one that is made.",
];

const ERRORS: &[(&str, &str)] = &[
    (
        "EINVAL",
        "umem_cache_create(): name is NULL, size is 0, align is no power of two or above 64 KiB, source is not NULL, or cflags has other bits.",
    ),
    (
        "ENOMEM",
        "umem_cache_create(): an object of more than 2 MiB. The others: no memory, or the constructor refused.",
    ),
    (
        "EAGAIN",
        "umem_cache_create(): no memory for the cache itself, or 32,768 caches.",
    ),
];

/// A call's prototype in the header, on one line.
fn prototype(name: &str) -> Option<String> {
    let start = HEADER.find(&format!("{name}("))?;
    let line = HEADER[..start].rfind('\n')? + 1;
    let len = HEADER[line..].find(';')? + 1;
    let words = HEADER[line..line + len].split_whitespace();
    Some(words.collect::<Vec<_>>().join(" "))
}

/// The page.
pub(crate) fn page() -> Page {
    let mut page = Roff::page_of(NAMES, 3, "object caches, and memory of any size");
    page.heading("LIBRARY");
    page.paragraph("libwindlass_alloc (pkg-config: windlass-umem)");
    page.heading("SYNOPSIS");
    let mut lines = vec!["#include <windlass/umem.h>".to_owned()];
    lines.extend(NAMES[1..].iter().filter_map(|name| prototype(name)));
    page.literal(&lines.join("\n"));
    page.heading("DESCRIPTION");
    for text in DESCRIPTION {
        page.paragraph(text);
    }
    page.heading("RETURN VALUE");
    page.paragraph("A cache, an object or memory; NULL with errno set after a failure.");
    page.heading("ERRORS");
    for (name, text) in ERRORS {
        page.term(name, text);
    }
    page.see_also(&["windlass-run.1"]);
    page.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call of the header is on the page.
    #[test]
    fn every_call_is_told() {
        let code = HEADER.lines().filter(|line| !line.starts_with("typedef"));
        let code: Vec<_> = code.collect();
        let declared = code.iter().filter(|line| line.ends_with(");")).count();
        let told = NAMES[1..].iter().filter_map(|name| prototype(name));
        assert_eq!(told.count(), declared);
        assert_eq!(NAMES.len(), declared + 1);
    }
}
