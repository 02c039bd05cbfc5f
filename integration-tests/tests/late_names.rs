//! Names of what is stored already: a binary that comes late, and `strobe resymbolize`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, User, executable, journey};

/// Build id of the binary that comes late.
const ID: &str = "00112233445566778899aabbccddeeff00112233";

/// An address behind all code.
const NOWHERE: u64 = 1 << 40;

/// Names of the highest generation, by frame.
const NAMES: &str = "SELECT frame, functions[1], reason FROM frames FINAL ORDER BY frame";

/// Returns the address of a function of an executable, and its name as linkers have it.
fn function(binary: &std::path::Path) -> Result<(u64, String)> {
    let output = Command::new("nm").arg("--defined-only").arg(binary).output()?;
    let text = String::from_utf8(output.stdout)?;
    let line = text
        .lines()
        .find(|line| line.ends_with(" main"))
        .context("the executable has no `main`")?;
    let address = line.split(' ').next().context("no address")?;
    Ok((u64::from_str_radix(address, 16)?, "main".to_owned()))
}

fn resymbolize(cluster: &Cluster, more: &[&str]) -> Result<serde_json::Value> {
    let arguments = [&["resymbolize", "--since", "-1d", "-o", "json"], more].concat();
    cluster.json(&arguments)
}

/// Checks that frames which were stored without a name get it when their binary is there and somebody asks for it; that doing so
/// again writes nothing; and that names outlive the loss of the binary.
#[test]
fn a_binary_that_comes_late_names_what_is_stored() -> Result<()> {
    journey("a_binary_that_comes_late_names_what_is_stored", &[], |cluster| {
        let binary = executable("strobe")?;
        let (address, name) = function(&binary)?;
        let rows = format!(
            "INSERT INTO frames (frame, generation, functions, files, lines, module, build_id, kind, address, reason, day) VALUES \
             (1, 1, [], [], [], '/opt/late', '{ID}', 'gnu', {address}, 'missing_binary', today()), \
             (2, 1, [], [], [], '/opt/late', '{ID}', 'gnu', {NOWHERE}, 'missing_binary', today()), \
             (3, 1, [], [], [], '/opt/other', 'ff', 'gnu', 1, 'missing_binary', today()), \
             (4, 1, ['kept'], ['a.c'], [7], '/opt/other', 'ff', 'gnu', 2, '', today())"
        );
        let (status, said) = cluster.http(User::Writer, &rows)?;
        ensure!(status == 200, "{said}");
        let early = resymbolize(cluster, &[])?;
        ensure!(early["frames"] == 3 && early["named"] == 0, "{early}");
        ensure!(early["unnamed"]["missing_binary"] == 3, "{early}");

        let folder = cluster.path("symbols").join("gnu").join(ID);
        fs::create_dir_all(&folder)?;
        fs::copy(&binary, folder.join("executable"))?;
        let late = resymbolize(cluster, &["--build-id", &ID[..6]])?;
        ensure!(late["frames"] == 2 && late["named"] == 1, "{late}");
        ensure!(late["unnamed"]["no_symbol_at_address"] == 1, "{late}");
        let expected = [
            ["1", name.as_str(), ""],
            ["2", "", "no_symbol_at_address"],
            ["3", "", "missing_binary"],
            ["4", "kept", ""],
        ];
        ensure!(cluster.rows(NAMES)? == expected, "{:?}", cluster.rows(NAMES)?);

        let count = "SELECT count() FROM frames FINAL WHERE generation > 1";
        let written = cluster.number(count)?;
        let again = resymbolize(cluster, &["--all"])?;
        ensure!(again["named"] == 0 && again["renamed"] == 0, "{again}");
        fs::remove_dir_all(&folder)?;
        let gone = resymbolize(cluster, &["--all"])?;
        ensure!(gone["named"] == 0 && gone["renamed"] == 0, "{gone}");
        ensure!(
            cluster.rows(NAMES)?[0][1] == name,
            "a name gave way to its absence"
        );
        ensure!(cluster.number(count)? == written);
        Ok(())
    })
}
