//! How nice the threads of this process are to others (`setpriority(2)`), from -20 to 19.

use rustix::process::{Pid, Resource, getpriority_process, getrlimit, setpriority_process};

use crate::caps::{Capability, holds};

/// That of the calling thread.
#[must_use]
pub fn niceness() -> i32 {
    getpriority_process(None).unwrap_or(0)
}

/// Whether a nicer thread of this process may become as little nice as that.
#[must_use]
pub fn may_return_to(niceness: i32) -> bool {
    // `RLIMIT_NICE` counts down from 20.
    let allowed = getrlimit(Resource::Nice).current.unwrap_or(u64::MAX);
    holds(Capability::SysNice)
        || i64::try_from(allowed).unwrap_or(i64::MAX) >= i64::from(20 - niceness)
}

/// Gives every thread of this process this niceness; those that they start later have it too. What the kernel refuses stays.
pub fn set_all(niceness: i32) {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return;
    };
    for thread in threads.flatten() {
        let number = thread
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            let _ = setpriority_process(Some(thread), niceness);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process is as nice as it says in all its threads; where it may not return it says so beforehand.
    #[test]
    fn a_process_returns_where_it_may() {
        let normal = niceness();
        let (of_other, from_other) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            while wait.recv().is_ok() {
                let _ = of_other.send(niceness());
            }
        });
        let both = || {
            go_on.send(()).expect("a thread");
            (niceness(), from_other.recv().expect("its answer"))
        };
        assert_eq!(both(), (normal, normal));
        let nicer = (normal + 3).min(19);
        let returned = if may_return_to(normal) { normal } else { nicer };
        set_all(nicer);
        assert_eq!(both(), (nicer, nicer));
        set_all(normal);
        assert_eq!(both(), (returned, returned));
        drop(go_on);
        other.join().expect("the other thread");
    }
}
