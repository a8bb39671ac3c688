//! The only printer. Documents go to stdout, everything said about them to stderr.

use super::failure::{Exit, Failure};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

/// How data is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one document.
    Json,
}

/// Characters that a terminal would act on, as a node or an operator may have put them into a text.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Why something on stdout was not written, if it was not.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// The failure of a command whose document did not all get out: a full disk, say.
pub(super) fn unwritten() -> Result<(), Failure> {
    let Some(why) = UNWRITTEN.get() else { return Ok(()) };
    let todo = "what it did is done; make room, then ask for it again";
    Err(Failure::new(Exit::Failed, "output", "the output was not written", why, todo))
}

/// A reader that went away (`| head`) has what it wanted.
fn noted(written: io::Result<()>) {
    if let Err(error) = written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
    {
        // The first is the one that tells.
        let _ = UNWRITTEN.set(error.to_string());
    }
}

fn write(mut out: impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush())
}

/// One line on stdout: the whole document of commands that print a single value.
pub(super) fn line(text: &str) {
    noted(write(io::stdout().lock(), &tame(text)));
}

/// A document as JSON on stdout.
pub(super) fn json<T: Serialize>(document: &T) {
    noted(write(io::stdout().lock(), &String::from_utf8_lossy(&state::to_bytes(document))));
}

/// Bytes on stdout as they are: generated files.
pub(super) fn raw(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    noted(out.write_all(bytes).and_then(|()| out.flush()));
}

/// A remark on stderr.
pub(super) fn note(text: &str) {
    let _ = write(io::stderr().lock(), &tame(text));
}

/// A failure on stderr: what, why, what to do.
pub(super) fn failure(failure: &Failure) {
    let _ = write(io::stderr().lock(), &failure_text(failure));
}

fn failure_text(failure: &Failure) -> String {
    let one_line = |text: &str| tame(&text.split('\n').map(str::trim).collect::<Vec<_>>().join(" "));
    format!(
        "error[{}]: {}\nwhy: {}\ntodo: {}",
        one_line(&failure.code),
        one_line(&failure.what),
        one_line(&failure.why),
        one_line(&failure.todo)
    )
}

/// A table on stdout. On a terminal it fits its width, and the first column, which names the row, stays in one piece so
/// that it can be copied; elsewhere nothing is cut or wrapped.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>) {
    noted(write(io::stdout().lock(), &table_text(header, rows, terminal_width())));
}

/// Two columns without a header: the facts of one thing.
pub(super) fn facts(rows: &[(&str, String)]) {
    let rows = rows.iter().map(|(name, value)| vec![format!("{name}:"), value.clone()]).collect();
    noted(write(io::stdout().lock(), &table_text(&[], rows, terminal_width())));
}

fn table_text(header: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let first = rows.iter().filter_map(|row| row.first()).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    if let Some(width) = width {
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
    }
    for row in rows {
        table.add_row(row.iter().map(|cell| tame(cell)).collect::<Vec<_>>());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if let (Some(width), Some(column)) = (width, table.column_mut(0))
        && first < usize::from(width / 2)
    {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    table.trim_fmt()
}

fn terminal_width() -> Option<u16> {
    let out = std::io::stdout();
    let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten()?;
    Some(size.ws_col).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use super::super::failure::Exit;
    use super::*;

    #[test]
    fn a_failure_is_three_lines_whatever_is_in_it() {
        let failure = Failure::new(Exit::Failed, "held", "name\n`x`", "because\u{1b}[31m of y", "wait");
        assert_eq!(failure_text(&failure), "error[held]: name `x`\nwhy: because\u{fffd}[31m of y\ntodo: wait");
    }

    #[test]
    fn a_table_fits_the_terminal_and_is_whole_elsewhere() {
        let rows = vec![vec!["web-1".to_owned(), "x".repeat(150)]];
        let wide = table_text(&["NAME", "KEY"], rows.clone(), None);
        assert!(wide.contains(&"x".repeat(150)));
        assert_eq!(wide.lines().next().unwrap().trim_end(), "NAME   KEY");
        let narrow = table_text(&["NAME", "KEY"], rows, Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        let id = "01a22ac8-7f63-7c4a-9d16-012581a7ddd4".to_owned();
        let header = ["JOB", "KIND", "NODE", "STATE", "ATTEMPT", "AGE", "WHY"];
        let told = ["service.check", "web", "failed", "1/5", "1m", "attempt 1 failed for good"].map(str::to_owned);
        let jobs = table_text(&header, vec![[&[id.clone()][..], &told].concat()], Some(80));
        assert!(jobs.contains(&id), "{jobs}");
        assert!(jobs.lines().all(|line| line.chars().count() <= 80), "{jobs}");
    }
}
