//! The ledger's disk is full: writes are refused as retryable, nothing that was accepted is lost, and all heals by itself
//! when there is room again. Or a backup's disk is.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
use testkit::servers::Postgres;

use crate::{patient, until};

/// A file system of its own, in memory. Needs root, as continuous integration has.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes},mode=755"), "tmpfs"])
            .arg(dir.path())
            .output()
            .unwrap();
        assert!(
            mounted.status.success(),
            "THE DISK CANNOT BE FILLED: no small file system can be mounted here ({}); run the tests as root",
            String::from_utf8_lossy(&mounted.stderr).trim()
        );
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        self.fill_but(0);
    }

    /// Takes all the room that is left but so many bytes.
    fn fill_but(&self, left: u64) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        for bytes in [1 << 20, 1 << 12] {
            while file.write_all(&vec![b'x'; bytes]).is_ok() {}
        }
        file.set_len(file.metadata().unwrap().len() - left).unwrap();
    }

    fn clear(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is still ending may have files open.
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).status();
    }
}

/// A payload that no compression makes small.
fn payload() -> String {
    (0..20_000).map(|_| format!("{:016x}", rand::random::<u64>())).collect()
}

/// Fills the disk under an instance at work, looks at what it says, and makes room again.
async fn fills_and_heals(disk: &SmallDisk, instance: &Instance) {
    let (client, url) = (patient(), instance.url());
    let grant =
        async || client.request("POST", &format!("{url}/v1/signers/a/nonces"), None, None).await.unwrap();
    let submit = async || {
        let job = json!({"payload": payload()});
        client.request("POST", &format!("{url}/v1/jobs"), None, Some(&job)).await.unwrap()
    };
    let ready = async || client.request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
    let (mut nonces, mut jobs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (granted, submitted) = (grant().await, submit().await);
        assert_eq!((granted.status, submitted.status), (201, 202), "{} {}", granted.text, submitted.text);
        nonces.push(granted.body["grants"][0]["nonce"].clone());
        jobs.push(submitted.body["id"].as_str().unwrap().to_owned());
    }
    disk.fill();
    until("a job finds no room", async || {
        let answer = grant().await;
        match answer.status {
            201 => nonces.push(answer.body["grants"][0]["nonce"].clone()),
            _ => assert_eq!((answer.status, answer.code()), (503, "ledger_unavailable"), "{}", answer.text),
        }
        let answer = submit().await;
        if answer.status == 202 {
            jobs.push(answer.body["id"].as_str().unwrap().to_owned());
            return false;
        }
        assert_eq!((answer.status, answer.code()), (503, "ledger_unavailable"), "{}", answer.text);
        assert!(answer.retry_after.is_some(), "{}", answer.text);
        true
    })
    .await;
    until("it is unready and says why", async || {
        let ready = ready().await;
        assert_ne!(ready.status, 500, "{}", ready.text);
        (ready.status, ready.code()) == (503, "ledger_unavailable")
            && ready.text.contains("the ledger's disk is full")
    })
    .await;
    disk.clear();
    until("it heals", async || ready().await.status == 200).await;
    until("a nonce is granted", async || {
        let answer = grant().await;
        if answer.status == 201 {
            nonces.push(answer.body["grants"][0]["nonce"].clone());
        }
        answer.status == 201
    })
    .await;
    until("a job is accepted", async || {
        let answer = submit().await;
        if answer.status == 202 {
            jobs.push(answer.body["id"].as_str().unwrap().to_owned());
        }
        answer.status == 202
    })
    .await;
    for job in &jobs {
        let shown = client.request("GET", &format!("{url}/v1/jobs/{job}"), None, None).await.unwrap();
        assert_eq!(shown.status, 200, "an accepted job is lost: {}", shown.text);
    }
    let held = client.get(&format!("{url}/v1/signers/a/nonces?status=HELD&limit=1000")).await.unwrap();
    let held: Vec<_> = held["items"].as_array().unwrap().iter().map(|item| item["nonce"].clone()).collect();
    for nonce in &nonces {
        assert!(held.contains(nonce), "a granted nonce is lost: {nonce} of {held:?}");
        assert_eq!(nonces.iter().filter(|other| *other == nonce).count(), 1, "{nonce} was granted twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_file_refuses_writes_loses_nothing_and_heals() {
    let disk = SmallDisk::mount(48 << 20);
    let instance = Setup::in_mode("worker-queue").unwrap().dir(disk.path()).start().await.unwrap();
    fills_and_heals(&disk, &instance).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_a_restart_of_the_machine_loses_is_told_of_by_a_start_and_by_check_config() {
    let disk = SmallDisk::mount(32 << 20);
    let is_told = |log: &str| log.contains("fencepost-data/ledger.db is in memory (tmpfs)");
    let check = Setup::command("check-config").dir(disk.path());
    let checked = check.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(is_told(&checked.stderr), "before it is made: {checked:?}");
    let instance = Setup::basic().unwrap().dir(disk.path()).start().await.unwrap();
    until("the log says so", async || is_told(&instance.whole_log())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_ends_as_where_the_ledger_is_away_and_one_with_room_serves() {
    let disk = SmallDisk::mount(32 << 20);
    let setup = || Setup::in_mode("worker-queue").unwrap().dir(disk.path());
    let mut instance = setup().start().await.unwrap();
    assert_eq!(instance.end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap().code(), Some(0));
    disk.fill();
    let ended = setup().run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    disk.clear();
    let _instance = setup().start().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_on_a_nearly_full_disk_says_that_it_is_full() {
    let disk = SmallDisk::mount(2 << 20);
    // Room for the file, but not for the index of its log.
    disk.fill_but(24 << 10);
    let ended = Setup::basic().unwrap().dir(disk.path()).run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("the ledger's disk is full"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_servers_tables_refuses_writes_loses_nothing_and_heals() {
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap().unwrap();
    let disk = SmallDisk::mount(96 << 20);
    let folder = disk.path().join("tables");
    std::fs::create_dir(&folder).unwrap();
    let database = Arc::new(server).database_in(&folder).unwrap();
    let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
    let instance = setup.start().await.unwrap();
    fills_and_heals(&disk, &instance).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_onto_a_full_disk_is_refused_and_says_nothing_of_the_ledgers_own_disk() {
    let disk = SmallDisk::mount(1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let _instance = Setup::basic().unwrap().dir(folder.path()).start().await.unwrap();
    disk.fill();
    let copy = disk.path().join("copy");
    let backup = Setup::command("backup").arg(copy.to_str().unwrap()).dir(folder.path());
    let ended = backup.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{ended:?}");
    let says = |words: &str| ended.stderr.contains(words);
    assert!(says(copy.to_str().unwrap()) && !says("the ledger's disk"), "{ended:?}");
}
