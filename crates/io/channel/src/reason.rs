//! [`Reason`]: why a connection, or one direction of it, is on the kernel.

macro_rules! reasons {
    ($( $name:ident = $value:literal, $word:literal, $text:literal; )*) => {
        /// Why a connection, or one direction of it, travels through the kernel.
        ///
        /// The value is stored in shared memory and sent in messages, so a number is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $( #[doc = $text] $name = $value, )*
        }

        impl Reason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &[Reason] = &[ $( Reason::$name ),* ];

            /// The reason with this number; a number that we do not know is [`Reason::Unknown`].
            pub const fn from_u8(value: u8) -> Reason {
                match value {
                    $( $value => Reason::$name, )*
                    _ => Reason::Unknown,
                }
            }

            /// One word, as `windlass sockets` and JSON show it.
            pub const fn word(self) -> &'static str {
                match self { $( Reason::$name => $word, )* }
            }

            /// One sentence for people.
            pub const fn text(self) -> &'static str {
                match self { $( Reason::$name => $text, )* }
            }
        }
    };
}

reasons! {
    None = 0, "none", "nothing stands against the ring";
    Young = 1, "young", "the connection has carried too little to be worth a ring";
    NotEligible = 2, "not-eligible", "the socket was made or used where the library could not see it";
    Tracked = 3, "tracked", "conntrack follows the connection, and its two ends were not proved to be one connection";
    Limit = 4, "limit", "a limit of channels, of ring memory or of process pairs is reached";
    Option = 5, "option", "a socket option is set that only the kernel implements";
    Flag = 6, "flag", "a call used a flag that only the kernel implements";
    Stdio = 7, "stdio", "the socket is used through stdio, or is one of the descriptors 0 to 2";
    Exec = 8, "exec", "the socket was open while its process executed another program";
    Passed = 9, "passed", "the descriptor was passed to, or inherited by, another program";
    IoUring = 10, "io-uring", "the process uses io_uring for more than epoll_ctl, or out of the library's sight";
    Seccomp = 11, "seccomp", "the process has entered a seccomp filter, so the library makes no calls of its own";
    NoDaemon = 12, "no-daemon", "no broker answers that could pair the two processes";
    NotRescuable = 13, "not-rescuable", "the broker cannot take the process's descriptors, so it could not move unread bytes for its peers";
    OtherUser = 14, "other-user", "the two ends belong to different users and did not both ask to be joined";
    PeerPlain = 15, "peer-plain", "the other end is not accelerated, or is another user's";
    Policy = 17, "policy", "the configuration or a firewall rule of this host keeps the connection on the kernel";
    Broken = 18, "broken", "the shared memory held impossible values";
    Remote = 19, "remote", "the other end is not on this host";
    NotEstablished = 20, "not-established", "the connection is not, or no longer, established";
    OtherNetns = 21, "other-netns", "the two ends are in different network namespaces";
    Mismatch = 22, "mismatch", "the names of the two ends do not match each other";
    Cloned = 24, "cloned", "threads of the process have separate descriptor tables";
    SelfConnected = 25, "self-connected", "the socket is connected to itself";
    Cork = 26, "cork", "the program has asked the kernel to hold small segments together";
    Killed = 27, "killed", "a process of the connection was killed";
    Asleep = 28, "asleep", "several processes wait for the socket, or it is in several epoll instances, or in one by other means than level or edge";
    Closing = 29, "closing", "the socket is being closed or shut down";
    Privileged = 32, "privileged", "the broker does not accept the credentials of the process";
    Shared = 33, "shared", "a second process sends, receives or waits on the socket";
    Unknown = 255, "unknown", "a reason that this version does not know";
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Numbers come back as the same reason, and words are unique, so tables can be read by machines.
    #[test]
    fn numbers_and_words_name_one_reason_each() {
        let mut words = std::collections::BTreeSet::new();
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_u8(reason as u8), reason);
            assert!(words.insert(reason.word()), "{} twice", reason.word());
        }
        assert_eq!(Reason::from_u8(200), Reason::Unknown);
    }
}
