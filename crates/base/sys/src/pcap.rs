//! libpcap's compiler of filters, loaded when it is first needed.
//!
//! # Model
//! The text of a filter, in the language of `pcap-filter(7)`, becomes classic BPF for Ethernet. libpcap is no dependency of the build, nor of a
//! program that compiles no filter: it is opened by name, from the directories of the dynamic loader, and stays.
//!
//! # Failure modes
//! Names of hosts, ports and protocols are looked up by libpcap where the calling process looks up names.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

use thiserror::Error;

/// Names under which libpcap is found: Debian's, and that of all others.
const NAMES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];
/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// `PCAP_NETMASK_UNKNOWN`.
const UNKNOWN: u32 = u32::MAX;

/// One instruction: code, jt, jf, k.
pub type Instruction = (u16, u8, u8, u32);

/// Why a filter could not be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FilterError {
    /// libpcap is not there, or is not whole.
    #[error("libpcap cannot be loaded: {0}")]
    Missing(String),
    /// What libpcap says of the text.
    #[error("{0}")]
    Refused(String),
    /// The text has a byte 0.
    #[error("a filter has no byte 0")]
    Zero,
}

#[repr(C)]
struct Insn {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

#[repr(C)]
struct Compiled {
    len: u32,
    instructions: *const Insn,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut Compiled, *const c_char, c_int, u32) -> c_int;
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut Compiled);
type Close = unsafe extern "C" fn(*mut c_void);

/// The library.
#[derive(Clone, Copy)]
pub struct Pcap {
    open_dead: OpenDead,
    compile: Compile,
    get_error: GetError,
    free_code: FreeCode,
    close: Close,
}

impl Pcap {
    /// Loads it.
    ///
    /// # Errors
    /// [`FilterError::Missing`], with what the loader says.
    pub fn load() -> Result<Pcap, FilterError> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: a name that ends with 0; what the library runs when it is loaded is the system's own.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            match NonNull::new(library) {
                Some(library) => return Pcap::of(library),
                None => why = last_error(),
            }
        }
        Err(FilterError::Missing(why))
    }

    fn of(library: NonNull<c_void>) -> Result<Pcap, FilterError> {
        let find = |name: &CStr| {
            // SAFETY: an open library, and a name that ends with 0.
            let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
            NonNull::new(found).ok_or_else(|| FilterError::Missing(last_error()))
        };
        let open_dead = find(c"pcap_open_dead")?.as_ptr();
        let compile = find(c"pcap_compile")?.as_ptr();
        let get_error = find(c"pcap_geterr")?.as_ptr();
        let free_code = find(c"pcap_freecode")?.as_ptr();
        let close = find(c"pcap_close")?.as_ptr();
        Ok(Pcap {
            // SAFETY: pcap/pcap.h declares the function so.
            open_dead: unsafe { transmute::<*mut c_void, OpenDead>(open_dead) },
            // SAFETY: as above.
            compile: unsafe { transmute::<*mut c_void, Compile>(compile) },
            // SAFETY: as above.
            get_error: unsafe { transmute::<*mut c_void, GetError>(get_error) },
            // SAFETY: as above.
            free_code: unsafe { transmute::<*mut c_void, FreeCode>(free_code) },
            // SAFETY: as above.
            close: unsafe { transmute::<*mut c_void, Close>(close) },
        })
    }

    /// Compiles a filter that accepts `snap` bytes of a frame.
    ///
    /// # Errors
    /// [`FilterError::Refused`], [`FilterError::Zero`].
    pub fn compile(&self, text: &str, snap: u32) -> Result<Vec<Instruction>, FilterError> {
        let text = CString::new(text).map_err(|_| FilterError::Zero)?;
        let snap = c_int::try_from(snap).unwrap_or(c_int::MAX);
        // SAFETY: takes two numbers.
        let handle = unsafe { (self.open_dead)(ETHERNET, snap) };
        if handle.is_null() {
            return Err(FilterError::Refused("out of memory".into()));
        }
        let mut compiled = Compiled {
            len: 0,
            instructions: std::ptr::null(),
        };
        // SAFETY: an open handle, room for the answer, and a text that ends with 0.
        let done = unsafe { (self.compile)(handle, &raw mut compiled, text.as_ptr(), 1, UNKNOWN) };
        let result = match done {
            0 => Ok(self.take(&mut compiled)),
            _ => {
                // SAFETY: an open handle.
                let message = unsafe { (self.get_error)(handle) };
                // SAFETY: the text lies in the handle, which is still open, and ends with 0.
                let message = unsafe { CStr::from_ptr(message) };
                Err(FilterError::Refused(message.to_string_lossy().into_owned()))
            }
        };
        // SAFETY: an open handle, which nobody uses any more.
        unsafe { (self.close)(handle) };
        result
    }

    fn take(&self, compiled: &mut Compiled) -> Vec<Instruction> {
        let instructions = match compiled.instructions.is_null() {
            true => Vec::new(),
            false => {
                // SAFETY: libpcap has put so many instructions there, and frees them below.
                let all = unsafe {
                    std::slice::from_raw_parts(compiled.instructions, compiled.len as usize)
                };
                all.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
            }
        };
        // SAFETY: what libpcap has filled in, once.
        unsafe { (self.free_code)(compiled) };
        instructions
    }
}

fn last_error() -> String {
    // SAFETY: gives a text that stays until the next call of the loader by this thread, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: it ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter becomes instructions that end with a return of the snapshot's length; one that is none is refused with a reason.
    #[test]
    fn filters_are_compiled_or_refused() {
        let pcap = match Pcap::load() {
            Ok(pcap) => pcap,
            Err(error) => {
                eprintln!("filters_are_compiled_or_refused: skipped: {error}");
                return;
            }
        };
        let program = pcap.compile("tcp port 80", 96).expect("a filter");
        assert!(program.len() > 10, "{program:?}");
        assert!(program.contains(&(0x06, 0, 0, 96)) && program.contains(&(0x06, 0, 0, 0)));
        assert!(
            matches!(pcap.compile("tcp port", 96), Err(FilterError::Refused(why)) if !why.is_empty())
        );
        assert_eq!(pcap.compile("tcp\0", 96), Err(FilterError::Zero));
    }
}
