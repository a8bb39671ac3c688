//! The command line as a whole: what it accepts, how it refuses, what it never repeats.

use super::failure::Exit;
use super::*;
use clap::CommandFactory;

fn refused(line: &str) -> Failure {
    let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let error = Cli::try_parse_from(&arguments).err().expect("a refusal");
    usage::failure(&error, &arguments)
}

#[test]
fn the_tree_is_sound_and_every_command_has_help() {
    let mut command = Cli::command();
    command.clone().debug_assert();
    command.build();
    fn walk(command: &clap::Command) {
        assert!(command.get_about().is_some(), "{} has no help", command.get_name());
        command.get_subcommands().for_each(walk);
    }
    walk(&command);
    assert_eq!(command.render_version(), format!("holdfast {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn global_flags_count_in_any_position() {
    for line in [
        "holdfast --socket /s -o json node ls",
        "holdfast node --socket /s ls -o json",
        "holdfast node ls -o json --socket /s",
    ] {
        let cli = Cli::try_parse_from(line.split(' ')).ok().unwrap();
        assert_eq!(cli.globals.socket.as_deref(), Some(std::path::Path::new("/s")), "{line}");
        assert_eq!(cli.globals.format(), output::Format::Json, "{line}");
    }
}

#[test]
fn what_is_not_understood_is_named_and_is_a_usage_error() {
    let failure = refused("holdfast node add Bad_Name");
    assert_eq!((failure.exit, failure.code.as_str()), (Exit::Usage, "usage"));
    assert!(failure.what.contains("Bad_Name"), "{failure:?}");
    assert!(failure.why.starts_with("`Bad_Name` has the character 'B'"), "{failure:?}");
    assert_eq!(failure.todo, "see `holdfast node add --help`");
    assert_eq!(refused("holdfast").what, "a command is missing");
    assert_eq!(refused("holdfast node").todo, "see `holdfast node --help`");
    assert!(refused("holdfast node lss").what.contains("lss"));
    assert!(refused("holdfast node ls --colour").what.contains("--colour"));
    assert!(refused("holdfast node admit zz").what.contains("zz"));
    assert!(refused("holdfast node add web --ttl soon").what.contains("soon"));
    assert!(refused("holdfast node add web --endpoint 127.0.0.1:51820").what.contains("127.0.0.1:51820"));
    let failure = refused("holdfast job show 999");
    assert_eq!(failure.why, "it is not a job's id; `holdfast job ls` lists them");
    assert_eq!(refused("holdfast explain 999").why, failure.why);
    assert!(refused("holdfast service publish shop/web --port 0").what.contains('0'));
}

#[test]
fn no_part_of_a_token_is_repeated() {
    for line in ["holdfast join hfj1_c2VjcmV0 -LW9mLXRoZQ", "holdfast join hfj1_c2VjcmV0 --port LW9mLXRoZQ"] {
        let shown = format!("{:?}", refused(line));
        assert!(!shown.contains("c2VjcmV0") && !shown.contains("LW9mLXRoZQ"), "{shown}");
    }
}
