//! The command `windlass`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    windlass_command::main()
}
