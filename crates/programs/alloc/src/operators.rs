//! C++'s operators new and delete, in every form.

use core::ffi::c_void;

use crate::arch::entries;
use crate::calls::{allocate, allocate_wide, release, take, take_aligned};
use crate::stack::Caller;

type Handler = unsafe extern "C-unwind" fn();

/// A function of libstdc++, if the program has it.
fn function(name: &core::ffi::CStr) -> *mut c_void {
    // SAFETY: looks up a name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The program's new-handler.
fn handler() -> Option<Handler> {
    let get = function(c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return None;
    }
    // SAFETY: `std::get_new_handler`, which takes nothing and returns a function or null.
    let get: extern "C" fn() -> Option<Handler> = unsafe { core::mem::transmute(get) };
    get()
}

/// As the standard says: the handler is called until there is memory; null where there is none.
fn insist(take: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        let object = take();
        if !object.is_null() {
            return object;
        }
        let Some(handler) = handler() else {
            return object;
        };
        // SAFETY: the program's own function, which makes room, throws or ends the program.
        unsafe { handler() };
    }
}

/// The same, and throws `std::bad_alloc` instead of returning null.
fn insist_or_throw(take: impl Fn() -> *mut c_void) -> *mut c_void {
    let object = insist(take);
    if object.is_null() {
        let throw = function(c"_ZSt17__throw_bad_allocv");
        if throw.is_null() {
            crate::report::die(format_args!("operator new: no memory"));
        }
        // SAFETY: `std::__throw_bad_alloc`, which takes nothing and does not return.
        let throw: Handler = unsafe { core::mem::transmute(throw) };
        // SAFETY: as above.
        unsafe { throw() };
    }
    object
}

entries! {
    /// `new` where its magazine is empty, or a sample is due.
    extern "C-unwind" fn new_slow(bytes: usize) -> *mut c_void => new_from;
    /// `new(std::nothrow)`
    #[unsafe(export_name = "_ZnwmRKSt9nothrow_t")]
    extern "C-unwind" fn new_nothrow(bytes: usize, tag: usize) -> *mut c_void => new_nothrow_from;
    /// `new[](std::nothrow)`
    #[unsafe(export_name = "_ZnamRKSt9nothrow_t")]
    extern "C-unwind" fn new_array_nothrow(bytes: usize, tag: usize) -> *mut c_void => new_nothrow_from;
    /// `new(std::align_val_t)`
    #[unsafe(export_name = "_ZnwmSt11align_val_t")]
    extern "C-unwind" fn new_aligned(bytes: usize, align: usize) -> *mut c_void => new_aligned_from;
    /// `new[](std::align_val_t)`
    #[unsafe(export_name = "_ZnamSt11align_val_t")]
    extern "C-unwind" fn new_array_aligned(bytes: usize, align: usize) -> *mut c_void => new_aligned_from;
    /// `new(std::align_val_t, std::nothrow)`
    #[unsafe(export_name = "_ZnwmSt11align_val_tRKSt9nothrow_t")]
    extern "C-unwind" fn new_aligned_nothrow(bytes: usize, align: usize, tag: usize) -> *mut c_void => new_aligned_nothrow_from;
    /// `new[](std::align_val_t, std::nothrow)`
    #[unsafe(export_name = "_ZnamSt11align_val_tRKSt9nothrow_t")]
    extern "C-unwind" fn new_array_aligned_nothrow(bytes: usize, align: usize, tag: usize) -> *mut c_void => new_aligned_nothrow_from;
}

extern "C-unwind" fn new_from(bytes: usize, sp: usize, fp: usize, pc: usize) -> *mut c_void {
    insist_or_throw(|| take(bytes, &Caller { sp, fp, pc }))
}

extern "C-unwind" fn new_nothrow_from(
    bytes: usize,
    _tag: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    insist(|| take(bytes, &Caller { sp, fp, pc }))
}

extern "C-unwind" fn new_aligned_from(
    bytes: usize,
    align: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    insist_or_throw(|| take_aligned(align, bytes, &Caller { sp, fp, pc }))
}

extern "C-unwind" fn new_aligned_nothrow_from(
    bytes: usize,
    align: usize,
    _tag: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    insist(|| take_aligned(align, bytes, &Caller { sp, fp, pc }))
}

#[inline(always)]
fn slow(bytes: usize) -> *mut c_void {
    // SAFETY: it takes any number.
    unsafe { new_slow(bytes) }
}

#[inline(never)]
extern "C-unwind" fn new_wide(bytes: usize) -> *mut c_void {
    allocate_wide(bytes, slow)
}

/// Each operator: its symbol, and what it does.
macro_rules! operators {
    ($($(#[doc = $text:literal])+ $symbol:literal $name:ident ($($argument:ident),*) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[doc = $text])+
            #[unsafe(export_name = $symbol)]
            pub extern "C-unwind" fn $name($($argument: usize),*) $(-> $result)? $body
        )*
    };
}

operators! {
    /// `new`
    "_Znwm" new(bytes) -> *mut c_void { allocate(bytes, |bytes| new_wide(bytes), slow) }
    /// `new[]`
    "_Znam" new_array(bytes) -> *mut c_void { allocate(bytes, |bytes| new_wide(bytes), slow) }
    /// `delete`
    "_ZdlPv" delete(object) { release(object as *mut c_void); }
    /// `delete[]`
    "_ZdaPv" delete_array(object) { release(object as *mut c_void); }
    /// `delete(std::nothrow)`
    "_ZdlPvRKSt9nothrow_t" delete_nothrow(object, _tag) { release(object as *mut c_void); }
    /// `delete[](std::nothrow)`
    "_ZdaPvRKSt9nothrow_t" delete_array_nothrow(object, _tag) { release(object as *mut c_void); }
    /// `delete(std::size_t)`
    "_ZdlPvm" delete_sized(object, _bytes) { release(object as *mut c_void); }
    /// `delete[](std::size_t)`
    "_ZdaPvm" delete_array_sized(object, _bytes) { release(object as *mut c_void); }
    /// `delete(std::align_val_t)`
    "_ZdlPvSt11align_val_t" delete_aligned(object, _align) { release(object as *mut c_void); }
    /// `delete[](std::align_val_t)`
    "_ZdaPvSt11align_val_t" delete_array_aligned(object, _align) { release(object as *mut c_void); }
    /// `delete(std::size_t, std::align_val_t)`
    "_ZdlPvmSt11align_val_t" delete_sized_aligned(object, _bytes, _align) { release(object as *mut c_void); }
    /// `delete[](std::size_t, std::align_val_t)`
    "_ZdaPvmSt11align_val_t" delete_array_sized_aligned(object, _bytes, _align) { release(object as *mut c_void); }
    /// `delete(std::align_val_t, std::nothrow)`
    "_ZdlPvSt11align_val_tRKSt9nothrow_t" delete_aligned_nothrow(object, _align, _tag) { release(object as *mut c_void); }
    /// `delete[](std::align_val_t, std::nothrow)`
    "_ZdaPvSt11align_val_tRKSt9nothrow_t" delete_array_aligned_nothrow(object, _align, _tag) { release(object as *mut c_void); }
}
