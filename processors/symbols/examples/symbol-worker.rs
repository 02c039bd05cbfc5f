//! A symbol worker by itself: what tests and measurements start in place of the shipped executable's sub-command.

fn main() -> std::process::ExitCode {
    strobe_symbols::worker_main()
}
