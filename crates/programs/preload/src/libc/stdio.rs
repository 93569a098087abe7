//! stdio on a socket: libc then reads and writes by itself, unseen. Such a socket stays on the kernel.

use windlass_channel::Reason;

use std::ffi::{c_char, c_int, c_void};

use crate::fd::table;
use crate::socket::demote::demote;
use crate::sys::real::{self, Slot};

/// `vprintf`'s list of arguments as a parameter: a pointer on x86-64 and on aarch64.
type VaList = *mut c_void;

fn seen(fd: c_int) {
    if let Some(sock) = table::tracked(fd) {
        demote(&sock, Reason::Stdio);
    }
}

unsafe extern "C" {
    fn fileno(file: *mut c_void) -> c_int;
}

interpose! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        seen(fd);
        pass!(fdopen(fd, mode))
    }

    fn fclose(file: *mut c_void) -> c_int {
        if table::exists() && !file.is_null() {
            let before = real::errno();
            // SAFETY: the program's own stream, still open.
            let fd = unsafe { fileno(file) };
            real::set_errno(before);
            crate::libc::files::closes(fd);
        }
        pass!(fclose(file))
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: VaList) -> c_int {
        seen(fd);
        pass!(vdprintf(fd, format, arguments))
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: VaList) -> c_int {
        seen(fd);
        pass!(__vdprintf_chk(fd, flag, format, arguments))
    }
}

static DPRINTF: Slot = Slot::new(c"dprintf");
static DPRINTF_CHK: Slot = Slot::new(c"__dprintf_chk");

extern "C-unwind" fn dprintf_target(fd: c_int) -> *mut c_void {
    seen(fd);
    DPRINTF.get()
}

extern "C-unwind" fn dprintf_chk_target(fd: c_int) -> *mut c_void {
    seen(fd);
    DPRINTF_CHK.get()
}

/// Defines a function of any arguments that looks at the first and goes on to libc's with all of them.
macro_rules! forwarded {
    ($($name:ident => $target:path;)*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            #[allow(non_snake_case, reason = "libc's own name")]
            pub unsafe extern "C-unwind" fn $name() {
                look_and_jump!($target)
            }
        )*
    };
}

forwarded! {
    dprintf => dprintf_target;
    __dprintf_chk => dprintf_chk_target;
}
