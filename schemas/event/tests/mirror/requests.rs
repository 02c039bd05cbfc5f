//! Requests, what becomes of them, and alerts.

use super::*;

mirror!(Request of Request {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16] = |id: &event::RequestId| id.0,
    action: i32 = code,
    who: String = same,
    why: String = same,
    origin: String = same,
    asked_us: i64 = long,
    service: String = same,
    region: String = same,
    host: String = same,
    pid: i32 = int,
    hosts: i32 = int,
    profiler: String = same,
    arguments: Vec<String> = same,
    frequency_hz: f64 = same,
    duration_us: i64 = long,
    wait_us: i64 = long,
    cause: i32 = code,
});

mirror!(SignedRequest of SignedRequest {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16] = |id: &event::RequestId| id.0,
    #[serde(with = "apache_avro::serde::bytes")]
    payload: Vec<u8> = same,
    #[serde(with = "apache_avro::serde::bytes")]
    signature: Vec<u8> = same,
});

mirror!(RequestState of RequestState {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16] = |id: &event::RequestId| id.0,
    host: String = same,
    phase: i32 = code,
    late: bool = same,
    time_us: i64 = long,
    #[serde(with = "apache_avro::serde::fixed")]
    life: [u8; 16] = same,
    left_us: i64 = long,
    #[serde(with = "apache_avro::serde::fixed")]
    run: [u8; 16] = |run: &event::RunId| run.0,
    taken: i64 = long,
    dropped: i64 = long,
    detail: String = same,
});

mirror!(HostReport of HostReport {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16] = |id: &event::RequestId| id.0,
    host: String = same,
    #[serde(with = "apache_avro::serde::fixed")]
    life: [u8; 16] = same,
    phase: i32 = code,
    #[serde(with = "apache_avro::serde::fixed")]
    run: [u8; 16] = |run: &event::RunId| run.0,
    taken: i64 = long,
    dropped: i64 = long,
    detail: String = same,
});

mirror!(Alert of Alert {
    fingerprint: String = same,
    name: String = same,
    status: i32 = code,
    started_us: i64 = long,
    ended_us: i64 = long,
    labels: Vec<String> = same,
    annotations: Vec<String> = same,
    group: String = same,
    source: String = same,
});

mirror!(AuditRecord of AuditRecord {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16] = |id: &event::AuditId| id.0,
    time_us: i64 = long,
    who: String = same,
    proved: bool = same,
    reporter: String = same,
    action: i32 = code,
    outcome: i32 = code,
    reason: String = same,
    detail: String = same,
    subject: String = same,
    service: String = same,
    profiler: String = same,
    target: String = same,
    why: String = same,
});

mirror!(AlertAnswer of AlertAnswer {
    fingerprint: String = same,
    rule: String = same,
    #[serde(with = "apache_avro::serde::fixed")]
    request: [u8; 16] = |id: &event::RequestId| id.0,
    time_us: i64 = long,
    link: String = same,
});

/// `ConfigFile` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigFile {
    name: String,
    text: String,
}

fn config_files(files: &[event::ConfigFile]) -> Vec<ConfigFile> {
    let file = |file: &event::ConfigFile| ConfigFile {
        name: file.name.clone(),
        text: file.text.clone(),
    };
    files.iter().map(file).collect()
}

mirror!(ConfigSet of ConfigSet {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16] = |id: &event::ConfigId| id.0,
    made_us: i64 = long,
    until_us: i64 = long,
    by: String = same,
    why: String = same,
    files: Vec<ConfigFile> = |files: &Vec<event::ConfigFile>| config_files(files),
});

mirror!(SignedConfig of SignedConfig {
    #[serde(with = "apache_avro::serde::bytes")]
    payload: Vec<u8> = same,
    #[serde(with = "apache_avro::serde::bytes")]
    signature: Vec<u8> = same,
});
