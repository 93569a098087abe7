//! The C interface: `windlass.h` says what each call does.
//!
//! # Model
//! Each function checks its pointers, calls the Rust method of the same name, and turns its error into -1, `errno` and a number
//! of the calling thread's own.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::borrow::Cow;
use std::ffi::{CString, OsStr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use windlass_attach::memif::Offloads;
use windlass_sys::Errno;

use crate::device::{Device, Options, Readiness};
use crate::devices;
use crate::error::{Code, Error};
use crate::frameio::{FRAMEIO_NVECS_MAX, FRAMEIO_VERSION, FrameIo, FrameVec};
use crate::lend;
use crate::offload::Offload;
use crate::rx::Place;
use crate::tx::Grant;

/// `WINDLASS_NONBLOCK`.
const NONBLOCK: c_int = 1;
/// `WINDLASS_OFFLOAD_CSUM`.
const OFFLOAD_CSUM: c_int = 2;
/// `WINDLASS_OFFLOAD_GSO`.
const OFFLOAD_GSO: c_int = 4;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(Code::Success) };
}

/// A frame in the ring's memory: `windlass_buf_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Buf {
    /// Its first byte.
    pub buf: *mut u8,
    /// Its bytes.
    pub len: usize,
}

/// A reservation: `windlass_lease_t`. What is in it is the library's.
#[derive(Debug)]
#[repr(C)]
pub struct CLease {
    words: [u64; 4],
}

const _: () = assert!(size_of::<Option<Grant>>() <= size_of::<CLease>());
const _: () = assert!(align_of::<Option<Grant>>() <= align_of::<CLease>());

fn fail(code: Code, errno: Errno) -> c_int {
    LAST.set(code);
    // SAFETY: the calling thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno.raw_os_error() };
    -1
}

fn answer(result: Result<c_int, Errno>) -> c_int {
    match result {
        Ok(value) => value,
        Err(errno) => fail(Code::System, errno),
    }
}

/// The device behind a handle.
///
/// # Safety
/// NULL, or a handle of [`windlass_open`] that is not closed.
unsafe fn device<'a>(handle: *const Device) -> Result<&'a Device, Errno> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or(Errno::FAULT)
}

/// The options of an open.
fn options(flags: c_int) -> Result<Options, Error> {
    if flags & !(NONBLOCK | OFFLOAD_CSUM | OFFLOAD_GSO) != 0 {
        return Err(Error::System(Errno::INVAL));
    }
    Ok(Options {
        offloads: match (flags & OFFLOAD_GSO != 0, flags & OFFLOAD_CSUM != 0) {
            (true, _) => Offloads::Gso,
            (false, true) => Offloads::Csum,
            (false, false) => Offloads::None,
        },
        nonblocking: flags & NONBLOCK != 0,
        ..Options::default()
    })
}

/// The text at a pointer.
///
/// # Safety
/// NULL, or a string.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a OsStr, Error> {
    if text.is_null() {
        return Err(Error::System(Errno::FAULT));
    }
    // SAFETY: a string (caller).
    let text = unsafe { CStr::from_ptr(text) };
    Ok(OsStr::from_bytes(text.to_bytes()))
}

fn handle(opened: Result<Device, Error>) -> *mut Device {
    match opened {
        Ok(device) => Box::into_raw(Box::new(device)),
        Err(error) => {
            fail(error.code(), error.errno());
            core::ptr::null_mut()
        }
    }
}

/// See `windlass_open(3)`.
///
/// # Safety
/// `zone` and `name` are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_open(
    zone: *const c_char,
    name: *const c_char,
    flags: c_int,
) -> *mut Device {
    // SAFETY: the caller's promise.
    let zone = unsafe { text(zone) };
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    handle((|| {
        Device::open(&word(zone?), &word(name?), options(flags)?)
    })())
}

/// What is not UTF-8 is no name of anything.
fn word(text: &OsStr) -> Cow<'_, str> {
    text.to_string_lossy()
}

/// 0, or what an error of a device is.
fn done(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => fail(error.code(), error.errno()),
    }
}

/// See `windlass_create(3)`.
///
/// # Safety
/// All are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_create(
    zone: *const c_char,
    vnic: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let zone = unsafe { text(zone) };
    // SAFETY: the caller's promise.
    let vnic = unsafe { text(vnic) };
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    done((|| {
        devices::create(&word(zone?), &word(vnic?), &word(name?))
    })())
}

/// See `windlass_create(3)`.
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_unlink(zone: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let zone = unsafe { text(zone) };
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    done((|| devices::unlink(&word(zone?), &word(name?)))())
}

/// One device: `windlass_info_t`.
#[derive(Debug)]
#[repr(C)]
pub struct Info {
    version: u32,
    name: *const c_char,
    zone: *const c_char,
    vnic: *const c_char,
}

/// See `windlass_create(3)`.
///
/// # Safety
/// `each` is a function that takes these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_walk(
    each: Option<unsafe extern "C" fn(*const Info, *mut c_void) -> c_int>,
    argument: *mut c_void,
) -> c_int {
    let Some(each) = each else {
        return fail(Code::System, Errno::FAULT);
    };
    let devices = match devices::list() {
        Ok(devices) => devices,
        Err(error) => return fail(error.code(), error.errno()),
    };
    for device in devices {
        // Names have no zero byte.
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let name = device
            .name
            .as_ref()
            .map_or("<unknown>", |name| name.as_str());
        let (name, zone) = (text(name), text(device.zone.as_str()));
        let vnic = text(device.vnic.as_str());
        let info = Info {
            version: 1,
            name: name.as_ptr(),
            zone: zone.as_ptr(),
            vnic: vnic.as_ptr(),
        };
        // SAFETY: a function of the caller's for these (caller).
        if unsafe { each(&raw const info, argument) } != 0 {
            return 1;
        }
    }
    0
}

/// See `windlass_create(3)`.
///
/// # Safety
/// The texts are NULL or strings; `bytes` is NULL or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_prop_get(
    zone: *const c_char,
    name: *const c_char,
    property: *const c_char,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let zone = unsafe { text(zone) };
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    // SAFETY: the caller's promise.
    let property = unsafe { text(property) };
    // SAFETY: the caller's promise.
    let place = unsafe { bytes.as_mut() };
    done((|| {
        let place = place.ok_or(Error::System(Errno::FAULT))?;
        *place = devices::property(&word(zone?), &word(name?), &word(property?))?;
        Ok(())
    })())
}

/// See `windlass_create(3)`.
///
/// # Safety
/// The texts are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_prop_set(
    zone: *const c_char,
    name: *const c_char,
    property: *const c_char,
    bytes: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let zone = unsafe { text(zone) };
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    // SAFETY: the caller's promise.
    let property = unsafe { text(property) };
    done((|| {
        devices::set_property(&word(zone?), &word(name?), &word(property?), bytes)
    })())
}

/// See `windlass_create(3)`.
///
/// # Safety
/// `each` is a function that takes these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_prop_iter(
    each: Option<unsafe extern "C" fn(*const c_char, c_int, *mut c_void) -> c_int>,
    argument: *mut c_void,
) -> c_int {
    let Some(each) = each else {
        return fail(Code::System, Errno::FAULT);
    };
    for (property, writable) in devices::PROPERTIES {
        // SAFETY: a function of the caller's for these (caller).
        if unsafe { each(property.as_ptr(), writable.into(), argument) } != 0 {
            return 1;
        }
    }
    0
}

/// See `windlass_open(3)`.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_open_socket(path: *const c_char, flags: c_int) -> *mut Device {
    // SAFETY: the caller's promise.
    let path = unsafe { text(path) };
    handle(path.and_then(|path| Device::open_path(Path::new(path), options(flags)?)))
}

/// See `windlass_open(3)`.
///
/// # Safety
/// NULL, or a handle that is not closed and that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_close(handle: *mut Device) {
    if !handle.is_null() {
        // SAFETY: made by `windlass_open` (caller).
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// See `windlass_errno(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_errno() -> c_int {
    LAST.get() as c_int
}

/// See `windlass_errno(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_strerror(number: c_int) -> *const c_char {
    Code::text(number).as_ptr()
}

/// See `windlass_open(3)`.
///
/// # Safety
/// NULL, or a handle that is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_set_nonblock(handle: *const Device, on: c_int) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { device(handle) }.map(|device| {
        device.set_nonblocking(on != 0);
        0
    }))
}

/// See `windlass_open(3)`.
///
/// # Safety
/// NULL, or a handle that is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_set_patience(handle: *const Device, ms: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { device(handle) }.map(|device| {
        device.set_patience(Duration::from_millis(ms.into()));
        0
    }))
}

/// See `windlass_pollfd(3)`.
///
/// # Safety
/// NULL, or a handle that is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_pollfd(handle: *const Device, events: c_int) -> c_int {
    const READ: c_int = libc::POLLIN as c_int;
    const WRITE: c_int = libc::POLLOUT as c_int;
    const ANY: c_int = READ | WRITE;
    let of = match events {
        READ => Ok(Readiness::Read),
        WRITE => Ok(Readiness::Write),
        ANY => Ok(Readiness::Any),
        _ => Err(Errno::INVAL),
    };
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) };
    answer(of.and_then(|of| Ok(device?.pollfd(of)?.as_raw_fd())))
}

/// See `windlass_frameio_read(3)`.
///
/// # Safety
/// NULL, or a handle that is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_drain(handle: *const Device, ms: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) };
    let limit = Duration::from_millis(ms.into());
    answer(device.and_then(|device| device.drain(limit)).map(|()| 0))
}

/// Checks the head of a call, does it, and writes the count back.
///
/// # Safety
/// `handle` as for [`device`]; `io` is NULL or a head with `nvecs` vectors behind it, as `how` wants them.
#[inline(always)]
unsafe fn framed(
    handle: *const Device,
    io: *mut FrameIo,
    how: impl FnOnce(&Device, usize, &mut [FrameVec]) -> Result<usize, Errno>,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) }?;
    // SAFETY: the caller's promise.
    let head = unsafe { io.as_mut() }.ok_or(Errno::FAULT)?;
    let count = head.nvecs as usize;
    if head.version != FRAMEIO_VERSION || count > FRAMEIO_NVECS_MAX {
        return Err(Errno::INVAL);
    }
    let nvpf = head.nvpf as usize;
    // Derived from `io`: what lies behind the head is no part of `head`.
    let first = io.wrapping_add(1).cast::<FrameVec>();
    // SAFETY: `count` vectors follow the head (caller), at the place that C gives a flexible array.
    let vecs = unsafe { core::slice::from_raw_parts_mut(first, count) };
    let done = how(device, nvpf, vecs)?;
    // SAFETY: the head, which the caller owns.
    unsafe { (*io).nvecs = done as u32 };
    Ok(0)
}

const _: () = assert!(size_of::<FrameIo>() == core::mem::offset_of!(FrameIo, vecs));

/// See `windlass_frameio_read(3)`.
///
/// # Safety
/// As [`windlass_frameio_write`], with buffers that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_frameio_read(handle: *const Device, io: *mut FrameIo) -> c_int {
    // SAFETY: the caller's promise.
    let read = |device: &Device, nvpf, vecs: &mut _| unsafe { device.read_raw(nvpf, vecs) };
    // SAFETY: the caller's promise.
    answer(unsafe { framed(handle, io, read) })
}

/// The metadata of the frames of a call: so many as there are frames.
///
/// # Safety
/// NULL, or a place for each frame that nobody else uses during the call.
unsafe fn offloads<'a>(
    first: *mut Offload,
    nvpf: usize,
    vecs: &[FrameVec],
) -> Result<&'a mut [Offload], Errno> {
    if first.is_null() {
        return Err(Errno::FAULT);
    }
    let frames = vecs.len().checked_div(nvpf).unwrap_or(0);
    // SAFETY: a place for each frame (caller).
    Ok(unsafe { core::slice::from_raw_parts_mut(first, frames) })
}

/// See `windlass_frameio_read_offload(3)`.
///
/// # Safety
/// As [`windlass_frameio_read`]; `first` is NULL or has a place for each frame.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_frameio_read_offload(
    handle: *const Device,
    io: *mut FrameIo,
    first: *mut Offload,
) -> c_int {
    let read = |device: &Device, nvpf, vecs: &mut [FrameVec]| {
        // SAFETY: the caller's promise.
        let all = unsafe { offloads(first, nvpf, vecs) }?;
        // SAFETY: the caller's promise.
        unsafe { device.read_offload_raw(nvpf, vecs, all) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { framed(handle, io, read) })
}

/// See `windlass_frameio_read_offload(3)`.
///
/// # Safety
/// As [`windlass_frameio_write`]; `first` is NULL or has one for each frame.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_frameio_write_offload(
    handle: *const Device,
    io: *mut FrameIo,
    first: *const Offload,
) -> c_int {
    let write = |device: &Device, nvpf, vecs: &mut [FrameVec]| {
        // SAFETY: the caller's promise; none is written.
        let all = unsafe { offloads(first.cast_mut(), nvpf, vecs) }?;
        // SAFETY: the caller's promise.
        unsafe { device.write_offload_raw(nvpf, vecs, all) }
    };
    // SAFETY: the caller's promise.
    answer(unsafe { framed(handle, io, write) })
}

/// See `windlass_frameio_read(3)`.
///
/// # Safety
/// `handle` is NULL or not closed; `io` is NULL or followed by `nvecs` vectors, each with a buffer of its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_frameio_write(handle: *const Device, io: *mut FrameIo) -> c_int {
    // SAFETY: the caller's promise.
    let write = |device: &Device, nvpf, vecs: &mut _| unsafe { device.write_raw(nvpf, vecs) };
    // SAFETY: the caller's promise.
    answer(unsafe { framed(handle, io, write) })
}

/// `count` places from `first` on.
///
/// # Safety
/// NULL, or so many places that nobody else uses during the call.
unsafe fn places<'a, T>(first: *mut T, count: c_uint) -> Result<&'a mut [T], Errno> {
    if first.is_null() {
        return Err(Errno::FAULT);
    }
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(n @ 1..=FRAMEIO_NVECS_MAX) => Ok(unsafe { core::slice::from_raw_parts_mut(first, n) }),
        _ => Err(Errno::INVAL),
    }
}

/// See `windlass_peek(3)`.
///
/// # Safety
/// `handle` is NULL or not closed; `bufs` is NULL or has `count` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_peek(
    handle: *const Device,
    bufs: *mut Buf,
    count: c_uint,
) -> c_int {
    let peek = || {
        // SAFETY: the caller's promise.
        unsafe { device(handle) }?.check_plain()?;
        // SAFETY: the caller's promise.
        unsafe { lend_to(handle, bufs, None, count) }
    };
    answer(peek())
}

/// See `windlass_frameio_read_offload(3)`.
///
/// # Safety
/// As [`windlass_peek`]; `first` is NULL or has `count` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_peek_offload(
    handle: *const Device,
    bufs: *mut Buf,
    first: *mut Offload,
    count: c_uint,
) -> c_int {
    let peek = || {
        // SAFETY: the caller's promise.
        let offloads = unsafe { places(first, count) }?;
        // SAFETY: the caller's promise.
        unsafe { lend_to(handle, bufs, Some(offloads), count) }
    };
    answer(peek())
}

/// Lends frames to C: where each lies, and what is to be done with it.
///
/// # Safety
/// As [`windlass_peek`].
unsafe fn lend_to(
    handle: *const Device,
    bufs: *mut Buf,
    mut offloads: Option<&mut [Offload]>,
    count: c_uint,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) }?;
    // SAFETY: the caller's promise.
    let bufs = unsafe { places(bufs, count) }?;
    let mut frames = [Place::default(); FRAMEIO_NVECS_MAX];
    let lent = device.lend(frames.get_mut(..bufs.len()).unwrap_or_default())?;
    for (k, (buf, frame)) in bufs.iter_mut().zip(frames).take(lent).enumerate() {
        *buf = Buf {
            buf: frame.ptr.cast_mut(),
            len: frame.len,
        };
        if let Some(place) = offloads.as_mut().and_then(|all| all.get_mut(k)) {
            *place = frame.offload;
        }
    }
    Ok(lent as c_int)
}

/// See `windlass_peek(3)`.
///
/// # Safety
/// `handle` is NULL or not closed; the frames are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_release(handle: *const Device, count: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) };
    answer(
        device
            .and_then(|device| device.unlend(count as usize))
            .map(|()| 0),
    )
}

/// See `windlass_peek(3)`.
///
/// # Safety
/// `handle` is NULL or not closed; `lease` is NULL or a place for one; `bufs` is NULL or has `count` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_reserve(
    handle: *const Device,
    lease: *mut CLease,
    bufs: *mut Buf,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) };
    // SAFETY: the caller's promise.
    let places = unsafe { places(bufs, count) };
    let reserve = || {
        if lease.is_null() {
            return Err(Errno::FAULT);
        }
        let (device, places) = (device?, places?);
        let grant = device.reserve_slots(places.len())?;
        for (k, place) in (0u16..).zip(places) {
            let (buf, room) = grant.buffer(k);
            *place = Buf {
                buf,
                len: room as usize,
            };
        }
        // SAFETY: a place for a lease (caller), which is as large and as aligned (above).
        unsafe { lease.cast::<Option<Grant>>().write(Some(grant)) };
        Ok(0)
    };
    answer(reserve())
}

/// See `windlass_peek(3)`.
///
/// # Safety
/// `handle` is NULL or not closed; `lease` is NULL or was filled by [`windlass_reserve`] of this handle; `bufs` is NULL or has `count`
/// places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_commit(
    handle: *const Device,
    lease: *mut CLease,
    bufs: *const Buf,
    count: c_uint,
) -> c_int {
    let none = [Offload::default(); FRAMEIO_NVECS_MAX];
    // SAFETY: the caller's promise.
    answer(unsafe { commit(handle, lease, bufs, none.as_ptr(), count) })
}

/// See `windlass_frameio_read_offload(3)`.
///
/// # Safety
/// As [`windlass_commit`]; `first` is NULL or has `count` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_commit_offload(
    handle: *const Device,
    lease: *mut CLease,
    bufs: *const Buf,
    first: *const Offload,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { commit(handle, lease, bufs, first, count) })
}

/// Ends a reservation: with so many frames, or as abandoned.
///
/// # Safety
/// As [`windlass_commit_offload`].
unsafe fn commit(
    handle: *const Device,
    lease: *mut CLease,
    bufs: *const Buf,
    first: *const Offload,
    count: c_uint,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    let device = unsafe { device(handle) }?;
    device.check()?;
    // SAFETY: NULL, or what `windlass_reserve` has put there (caller).
    let place = unsafe { lease.cast::<Option<Grant>>().as_mut() };
    let grant = place.ok_or(Errno::FAULT)?.take().ok_or(Errno::INVAL)?;
    let is_given = !bufs.is_null() && !first.is_null() && count as usize <= FRAMEIO_NVECS_MAX;
    let count = if is_given { count as usize } else { 0 };
    let frame = |k: usize| {
        // SAFETY: so many places (caller); none where a pointer is NULL.
        let buf = unsafe { bufs.wrapping_add(k).read() };
        // SAFETY: as above.
        let offload = unsafe { first.wrapping_add(k).read() };
        (buf.len, offload)
    };
    lend::commit(device, grant, (0..count).map(frame)).map(|()| 0)
}
