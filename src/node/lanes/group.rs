//! The processes of an attempt, as a whole: started together, ended together, and found again after a kill of the agent.
//!
//! Where cgroup v2 can be written each attempt has a cgroup, which nothing leaves: not by forking twice, not by
//! `setsid`. Elsewhere its processes are known by their process group and by a variable of their environment, which a
//! program that empties its environment and leaves the group escapes. What was started is written down before it can
//! do anything, so that the next agent ends it.

use crate::files::{self, FileError};
use crate::limits;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use state::model::{JobId, NodeId};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// The folder of records in the state directory.
const FOLDER: &str = "work";
/// The format of a record that this version writes and reads.
const FORMAT: u16 = 1;
/// The variable by which processes of an attempt are known.
const VARIABLE: &str = "HOLDFAST_WORK";
/// Who work runs as under an agent that is root: nobody, who cannot read the agent's directory.
const NOBODY: u32 = 65534;
/// Between two looks at whether a group is empty.
const LOOK: Duration = Duration::from_millis(10);

/// Why processes were not started or ended.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A record of ours.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel refused.
    #[error("{doing}: {source}")]
    Kernel {
        /// What was tried.
        doing: String,
        /// Its answer.
        source: std::io::Error,
    },
    /// Something that was killed is still there.
    #[error(
        "attempt {0} still has processes after they were killed: look for tasks in state D, or restart the machine"
    )]
    NotEmpty(String),
}

fn kernel(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> GroupError {
    let doing = doing.into();
    move |source| GroupError::Kernel { doing, source }
}

/// What is written down of an attempt's processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    format: u16,
    /// The kernel's id of this boot: after another one nothing of it runs.
    boot: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup: Option<PathBuf>,
    /// The first process, which leads the process group; absent until it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leader: Option<Leader>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Leader {
    pid: i32,
    /// When it started, in the kernel's ticks since boot: a later process of the same number has another.
    started: u64,
}

/// All processes of work of one state directory.
#[derive(Clone, Debug)]
pub struct Groups {
    folder: PathBuf,
    /// Where cgroups of attempts are made; none where cgroup v2 cannot be written.
    cgroups: Option<PathBuf>,
    boot: String,
}

/// The processes of one attempt. It must be ended; one that is only dropped is found by the next agent.
#[derive(Debug)]
pub struct Group {
    /// The first process, with its pipes.
    pub child: Child,
    name: String,
    record: Record,
    file: PathBuf,
}

impl Groups {
    /// Looks which means this machine has, and sees to it that no child gets a descriptor of whoever started us.
    pub fn open(state_dir: &Path, node: NodeId) -> Result<Self, GroupError> {
        super::descriptors::close_in_children();
        let folder = state_dir.join(FOLDER);
        files::private_dir(&folder)?;
        let path = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(path).map_err(kernel(format!("reading {path}")))?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let cgroups = cgroup_of(&mounts, &own).map(|own| own.join(format!("holdfast-{node}")));
        let cgroups = cgroups.filter(|path| {
            let good = made(path) && path.join("cgroup.kill").exists();
            // Made only to see whether it can be; it stays if an earlier agent left work in it.
            let _ = std::fs::remove_dir(path);
            good
        });
        Ok(Self { folder, cgroups, boot: boot.trim().to_owned() })
    }

    /// Whether nothing can leave a group here.
    pub fn are_tight(&self) -> bool {
        self.cgroups.is_some()
    }

    /// Ends everything that earlier agents of this directory left running.
    pub async fn sweep(&self) -> Result<(), GroupError> {
        self.end_all(|_| true).await
    }

    /// Ends everything that earlier attempts of a job left running.
    pub async fn clear(&self, job: JobId) -> Result<(), GroupError> {
        let prefix = format!("{job}-");
        self.end_all(|name| name.starts_with(&prefix)).await
    }

    async fn end_all(&self, which: impl Fn(&str) -> bool) -> Result<(), GroupError> {
        let listed = std::fs::read_dir(&self.folder).map_err(kernel(format!("reading {}", self.folder.display())))?;
        let mut first = Ok(());
        for file in listed.flatten().map(|entry| entry.path()) {
            let Some(name) = file.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else { continue };
            if !which(name) {
                continue;
            }
            let ended = match files::document::<Record>(&file, limits::WORK_RECORD, FORMAT) {
                Ok(Some(record)) if record.boot == self.boot => end(name, &record).await,
                Ok(_) => Ok(()),
                Err(error) => Err(error.into()),
            };
            match ended {
                Ok(()) => files::remove(&file)?,
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    /// Starts a program in a group of its own: with this environment and no other, no descriptor of the agent but pipes
    /// at its standard input and output, as nobody where the agent is root. The program must do nothing before it has
    /// read from its standard input: only then is it where it can be found again.
    pub fn start(&self, job: JobId, attempt: u32, mut command: Command) -> Result<Group, GroupError> {
        let name = format!("{job}-{attempt}");
        let file = self.folder.join(format!("{name}.json"));
        let cgroup = self.cgroups.as_ref().map(|path| path.join(&name));
        let mut record = Record { format: FORMAT, boot: self.boot.clone(), cgroup, leader: None };
        files::replace(&file, &state::to_bytes(&record))?;
        if let Some(path) = &record.cgroup {
            std::fs::create_dir_all(path).map_err(kernel(format!("making {}", path.display())))?;
        }
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LANG", "C.UTF-8").env(VARIABLE, &name);
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.spawn().map_err(kernel("starting work"))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let started = pid.and_then(process).map(|seen| seen.started);
        record.leader = pid.zip(started).map(|(pid, started)| Leader { pid, started });
        files::replace(&file, &state::to_bytes(&record))?;
        if let (Some(path), Some(pid)) = (&record.cgroup, pid) {
            let path = path.join("cgroup.procs");
            put(&path, &pid.to_string()).map_err(kernel(format!("writing {}", path.display())))?;
        }
        Ok(Group { child, name, record, file })
    }
}

impl Group {
    /// Kills whatever runs of it and sees it gone. What cannot be ended stays on record.
    pub async fn end(mut self) -> Result<(), GroupError> {
        let ended = end(&self.name, &self.record).await;
        // The kernel keeps the first process as a zombie until it is asked for.
        let _ = self.child.try_wait();
        ended?;
        Ok(files::remove(&self.file)?)
    }
}

async fn end(name: &str, record: &Record) -> Result<(), GroupError> {
    let looks = limits::GROUP_END.as_millis() / LOOK.as_millis();
    for _ in 0..looks {
        let in_cgroup = match &record.cgroup {
            Some(path) => kill_cgroup(path)?,
            None => 0,
        };
        let known = members(name, record.leader);
        for pid in &known {
            // One that has ended meanwhile cannot be told, and need not be.
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
        if in_cgroup + known.len() == 0 {
            return remove_cgroup(record.cgroup.as_deref());
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(GroupError::NotEmpty(name.to_owned()))
}

/// Kills all of a cgroup; how many there may still be.
fn kill_cgroup(path: &Path) -> Result<usize, GroupError> {
    let events = match std::fs::read_to_string(path.join("cgroup.events")) {
        Ok(events) => events,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(kernel(format!("reading {}/cgroup.events", path.display()))(error)),
    };
    if events.lines().any(|line| line == "populated 0") {
        return Ok(0);
    }
    put(&path.join("cgroup.kill"), "1").map_err(kernel(format!("killing {}", path.display())))?;
    Ok(1)
}

fn remove_cgroup(path: Option<&Path>) -> Result<(), GroupError> {
    let Some(path) = path else { return Ok(()) };
    match std::fs::remove_dir(path) {
        Ok(()) => {
            // The node's own, unless other work is in it.
            let _ = path.parent().map(std::fs::remove_dir);
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(kernel(format!("removing {}", path.display()))(error)),
    }
}

/// The living processes of an attempt, by group and by environment.
fn members(name: &str, leader: Option<Leader>) -> Vec<Pid> {
    let marker = format!("{VARIABLE}={name}");
    // A number is not given anew while a group has it: only a living leader of another start is somebody else's.
    let group = leader.filter(|leader| process(leader.pid).is_none_or(|seen| seen.started == leader.started));
    let Ok(listed) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let Some(seen) = process(*pid).filter(|seen| !seen.dead) else { return false };
        group.is_some_and(|leader| seen.group == leader.pid)
            || std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == marker.as_bytes()))
    })
    .filter_map(Pid::from_raw)
    .collect()
}

#[derive(Debug, PartialEq, Eq)]
struct ProcessSeen {
    group: i32,
    started: u64,
    /// Ended, and not yet asked for.
    dead: bool,
}

fn process(pid: i32) -> Option<ProcessSeen> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `/proc/<pid>/stat` (proc_pid_stat(5)): the name in parentheses may hold anything, so the fields begin after the last.
fn parse_stat(stat: &str) -> Option<ProcessSeen> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(ProcessSeen {
        dead: matches!(*fields.first()?, "Z" | "X"),
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// The cgroup of this process in the second version's tree: where that is mounted, and the path in it.
fn cgroup_of(mounts: &str, own: &str) -> Option<PathBuf> {
    let mount =
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|m| m.get(2) == Some(&"cgroup2"))?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount.get(1)?).join(own))
}

fn made(path: &Path) -> bool {
    std::fs::create_dir(path).is_ok() || path.is_dir()
}

/// Writes to a file of the kernel's.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn node() -> NodeId {
        NodeId(crate::entropy::uuid())
    }

    fn job() -> JobId {
        JobId(crate::entropy::uuid())
    }

    /// Reads its standard input as work does, then leaves a child that has forked twice and has a session of its own.
    fn daemonising() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "read go; (setsid sh -c 'sleep 600 & sleep 600') & echo $! ; sleep 600"]);
        command
    }

    async fn go(group: &mut Group) {
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
        group.child.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
        let mut line = String::new();
        tokio::io::BufReader::new(group.child.stdout.as_mut().unwrap()).read_line(&mut line).await.unwrap();
    }

    /// Whether at least three processes have the attempt's variable in time.
    async fn three_run(name: &str) -> bool {
        for _ in 0..500 {
            if members(name, None).len() >= 3 {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    fn both() -> Vec<(tempfile::TempDir, Groups)> {
        [true, false]
            .into_iter()
            .filter_map(|tight| {
                let dir = tempfile::tempdir().unwrap();
                let mut groups = Groups::open(dir.path(), node()).unwrap();
                groups.cgroups.take_if(|_| !tight);
                (groups.are_tight() == tight).then_some((dir, groups))
            })
            .collect()
    }

    fn gone(groups: &Groups) {
        assert_eq!(std::fs::read_dir(&groups.folder).unwrap().count(), 0, "a record is left");
        if let Some(path) = &groups.cgroups {
            assert!(!path.exists(), "a cgroup is left");
        }
    }

    #[tokio::test]
    async fn what_has_forked_twice_and_left_the_session_dies_with_its_group() {
        for (_dir, groups) in both() {
            let job = job();
            let mut group = groups.start(job, 1, daemonising()).unwrap();
            go(&mut group).await;
            let name = format!("{job}-1");
            assert!(three_run(&name).await, "the descendants run");
            group.end().await.unwrap();
            assert_eq!(members(&name, None), []);
            gone(&groups);
        }
    }

    /// A cgroup holds even what has emptied its environment and left group and session.
    #[tokio::test]
    async fn nothing_leaves_a_cgroup() {
        let Some((_dir, groups)) = both().into_iter().find(|(_, groups)| groups.are_tight()) else { return };
        let mut command = Command::new("sh");
        command.args(["-c", "read go; (env -i setsid sh -c 'sleep 601 & sleep 601') & echo x; sleep 600"]);
        let mut group = groups.start(job(), 1, command).unwrap();
        go(&mut group).await;
        let procs = group.record.cgroup.clone().unwrap().join("cgroup.procs");
        let inside = || std::fs::read_to_string(&procs).unwrap_or_default().lines().count();
        for _ in 0..500 {
            if inside() >= 4 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let pids = std::fs::read_to_string(&procs).unwrap();
        assert!(pids.lines().count() >= 4, "{pids}");
        group.end().await.unwrap();
        for pid in pids.lines().map(|pid| pid.parse().unwrap()) {
            assert!(process(pid).is_none_or(|seen| seen.dead), "{pid} lives");
        }
        gone(&groups);
    }

    #[tokio::test]
    async fn the_next_agent_ends_what_a_killed_one_left() {
        for (dir, groups) in both() {
            let (mine, other) = (job(), job());
            let mut group = groups.start(mine, 3, daemonising()).unwrap();
            go(&mut group).await;
            let mut second = groups.start(other, 1, daemonising()).unwrap();
            go(&mut second).await;
            let name = format!("{mine}-3");
            assert!(three_run(&name).await);
            // As after a kill -9: nobody ends it, and only the directory is known.
            std::mem::forget(group);
            std::mem::forget(second);
            let next = Groups { folder: dir.path().join(FOLDER), ..groups.clone() };
            next.clear(mine).await.unwrap();
            assert_eq!(members(&name, None), []);
            assert!(three_run(&format!("{other}-1")).await, "another job's work goes on until the sweep");
            next.sweep().await.unwrap();
            assert_eq!(members(&format!("{other}-1"), None), []);
            gone(&groups);
        }
    }

    #[tokio::test]
    async fn work_has_a_listed_environment_no_descriptor_and_no_rights_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let groups = Groups::open(dir.path(), node()).unwrap();
        let key = dir.path().join("signing.key");
        files::create_once(&key, b"secret").unwrap();
        let _open = std::fs::File::open(&key).unwrap();
        let mut command = Command::new("sh");
        let script =
            "read file; env | cut -d= -f1 | sort | tr '\\n' ' '; ls /proc/self/fd | tr '\\n' ' '; id -u; cat $file";
        command.env("HOLDFAST_SECRET", "x").args(["-c", script]);
        let mut group = groups.start(job(), 1, command).unwrap();
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stdin = group.child.stdin.take().unwrap();
        stdin.write_all(format!("{}\n", key.display()).as_bytes()).await.unwrap();
        drop(stdin);
        let mut told = String::new();
        group.child.stdout.take().unwrap().read_to_string(&mut told).await.unwrap();
        // Descriptor 3 is ls's own.
        assert_eq!(told, format!("HOLDFAST_WORK LANG PATH PWD 0 1 2 3 {NOBODY}\n"));
        group.end().await.unwrap();
        gone(&groups);
    }

    #[tokio::test]
    async fn records_keep_their_bytes_and_one_of_a_newer_format_is_left_alone() {
        let golden = r#"{"format":1,"boot":"earlier","cgroup":"/sys/fs/cgroup/x","leader":{"pid":7,"started":9}}"#;
        let record: Record = serde_json::from_str(golden).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), golden);
        let dir = tempfile::tempdir().unwrap();
        let groups = Groups::open(dir.path(), node()).unwrap();
        let [newer, old] = ["newer-1.json", "old-1.json"].map(|name| groups.folder.join(name));
        files::replace(&newer, br#"{"format":2,"boot":"earlier"}"#).unwrap();
        files::replace(&old, golden.as_bytes()).unwrap();
        let refused = groups.sweep().await.unwrap_err().to_string();
        assert!(refused.contains("newer-1.json: is of format 2"), "{refused}");
        assert!(newer.exists() && !old.exists(), "what can be read is dealt with all the same");
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_kernels_line() {
        let line = "7 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987 1 2";
        assert_eq!(parse_stat(line), Some(ProcessSeen { group: 42, started: 987, dead: false }));
        assert_eq!(parse_stat("7 (x) Z 1 42"), None);
    }

    #[test]
    fn the_own_cgroup_is_found_in_either_layout() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "5:devices:/\n0::/system.slice/holdfast-agent.service\n";
        let path = "/sys/fs/cgroup/unified/system.slice/holdfast-agent.service";
        assert_eq!(cgroup_of(mounts, own).as_deref(), Some(Path::new(path)));
        assert_eq!(cgroup_of("proc /proc proc rw 0 0\n", own), None);
    }
}
