//! One planted violation of each ban in the project's `clippy.toml`. A mistyped path there bans nothing and says nothing,
//! so `tests/tidy.rs` runs clippy over this file with `--cfg planted` and expects every ban to bite. Without that flag
//! the file is empty, and nothing here is ever run.

#[cfg(planted)]
mod planted {
    pub fn clocks() {
        let _ = std::time::SystemTime::now();
        let _ = std::time::Instant::now();
        let _ = tokio::time::Instant::now();
    }

    pub fn spawning() {
        let _ = tokio::spawn(async {});
        let _ = tokio::task::spawn(async {});
        let _ = tokio::task::spawn_blocking(|| {});
    }

    pub fn randomness(buffer: &mut [u8]) {
        let _ = getrandom::fill(buffer);
    }

    pub fn files() {
        let _ = std::fs::write("file", "bytes");
        let _ = std::fs::File::create("file");
    }

    pub fn children() {
        let _ = std::process::Command::new("program");
        let _ = tokio::process::Command::new("program");
    }

    pub fn unordered(_: &std::collections::HashMap<u8, u8>, _: &std::collections::HashSet<u8>) {}
}
