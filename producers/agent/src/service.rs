//! Which service a process belongs to.
//!
//! In this order: the variable `STROBE_SERVICE` of its environment, the systemd unit or the container of its control group,
//! the name of its executable. Names come from profiled processes: they are cleaned and bounded, and a host has at most
//! [`SERVICES_MAX`] of them, the rest is `other`.

use std::sync::Arc;

use rustc_hash::FxHashSet;

/// Services of one host.
pub const SERVICES_MAX: usize = 256;
/// Characters of a name.
const NAME_CHARS_MAX: usize = 64;
/// Characters of a container id that is shown: what container runtimes print.
const CONTAINER_CHARS: usize = 12;

/// The variable by which a process names its service.
pub const VARIABLE: &str = "STROBE_SERVICE";
/// The service of kernel threads.
pub const KERNEL: &str = "kernel";
/// The service of whatever has none of its own, or comes after the first [`SERVICES_MAX`].
pub const OTHER: &str = "other";

/// What is known of a process image beside its mappings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belonging {
    /// Its service.
    pub service: Arc<str>,
    /// Its container's id; empty for none.
    pub container: Arc<str>,
    /// Its control group's path; empty if not known.
    pub cgroup: Arc<str>,
}

/// The services of this host so far.
#[derive(Debug, Default)]
pub struct Services {
    names: FxHashSet<Arc<str>>,
    kernel: Option<Arc<Belonging>>,
    /// Processes that were put under `other`, because the host has too many services. Healthy: 0.
    pub overflowed: u64,
}

impl Services {
    /// Returns what a process belongs to: by `variable`, the value of [`VARIABLE`] in its environment, by its control group, by
    /// its executable's path, or, where not even that is known, by the name of its thread.
    pub fn decide(
        &mut self,
        variable: Option<&str>,
        cgroup: Option<&str>,
        executable: Option<&str>,
        comm: &[u8],
    ) -> Arc<Belonging> {
        let comm = String::from_utf8_lossy(comm);
        let executable = executable.map(file_name).filter(|name| !name.is_empty());
        Arc::new(self.named(variable, cgroup, executable.unwrap_or(&comm)))
    }

    /// Returns what kernel threads belong to.
    pub fn kernel(&mut self) -> Arc<Belonging> {
        match &self.kernel {
            Some(kernel) => Arc::clone(kernel),
            None => {
                let kernel = Arc::new(self.named(Some(KERNEL), None, KERNEL));
                Arc::clone(self.kernel.insert(kernel))
            }
        }
    }

    fn named(&mut self, variable: Option<&str>, cgroup: Option<&str>, executable: &str) -> Belonging {
        let container = cgroup.and_then(container_id).unwrap_or_default();
        let candidates = [
            variable.map(str::to_owned),
            cgroup.and_then(systemd_unit).map(str::to_owned),
            (!container.is_empty()).then(|| container.chars().take(CONTAINER_CHARS).collect()),
            Some(executable.to_owned()),
        ];
        let name = candidates
            .into_iter()
            .flatten()
            .map(|name| clean(&name))
            .find(|name| !name.is_empty());
        Belonging {
            service: self.admit(name.as_deref().unwrap_or(OTHER)),
            container: container.into(),
            cgroup: cgroup.unwrap_or_default().into(),
        }
    }

    fn admit(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() >= SERVICES_MAX && name != OTHER {
            self.overflowed += 1;
            return self.admit(OTHER);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

/// Returns a name without what could confuse people or tools: letters, digits and `._-@:+` stay, the rest becomes `_`.
fn clean(name: &str) -> String {
    let kept = name.trim().chars().take(NAME_CHARS_MAX);
    kept.map(|c| {
        if c.is_alphanumeric() || "._-@:+".contains(c) {
            c
        } else {
            '_'
        }
    })
    .collect()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the unit that a control group belongs to: `nginx` for `/system.slice/nginx.service`.
fn systemd_unit(cgroup: &str) -> Option<&str> {
    let unit = cgroup
        .rsplit('/')
        .find_map(|part| part.strip_suffix(".service"))?;
    // Sessions of people and the service manager itself say nothing of what runs in them.
    (!unit.starts_with("user@")).then_some(unit)
}

/// Returns the container that a control group belongs to: 64 hexadecimal digits, bare or within `docker-….scope` and the like.
fn container_id(cgroup: &str) -> Option<String> {
    cgroup.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let id = part.rsplit(['-', ':']).next()?;
        (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the order: the variable, the unit, the container, the executable.
    #[test]
    fn a_service_is_named_by_the_first_that_knows() {
        let id = "0123456789abcdef".repeat(4);
        let in_container = format!("/docker/{id}");
        let mut services = Services::default();
        for (variable, cgroup, expected) in [
            (Some("checkout"), Some("/system.slice/nginx.service"), "checkout"),
            (None, Some("/system.slice/nginx.service"), "nginx"),
            (None, Some(in_container.as_str()), "0123456789ab"),
            (
                None,
                Some("/user.slice/user-0.slice/user@0.service/app.slice"),
                "postgres",
            ),
            (Some("  "), None, "postgres"),
            (None, None, "postgres"),
        ] {
            assert_eq!(&*services.named(variable, cgroup, "postgres").service, expected);
        }
    }

    /// Checks that a hostile name is cleaned and bounded.
    #[test]
    fn hostile_names_are_cleaned() {
        let mut services = Services::default();
        let name = services.named(Some("<script>\n\u{1b}[31m"), None, "x").service;
        assert!(
            name.chars().all(|c| c.is_alphanumeric() || "._-@:+".contains(c)),
            "{name}"
        );
        assert_eq!(
            services.named(Some(&"a".repeat(9_999)), None, "x").service.len(),
            NAME_CHARS_MAX
        );
    }

    /// Checks that the names of a host are bounded, and that what comes after is `other`.
    #[test]
    fn services_are_bounded() {
        let mut services = Services::default();
        for number in 0..SERVICES_MAX + 10 {
            services.named(Some(&format!("service-{number}")), None, "x");
        }
        assert_eq!(&*services.named(Some("one-more"), None, "x").service, OTHER);
        assert_eq!(
            &*services.named(Some("service-3"), None, "x").service,
            "service-3"
        );
        assert_eq!(services.overflowed, 11);
    }

    /// Checks the shapes of control groups that container runtimes make.
    #[test]
    fn containers_are_recognized() {
        let id = "fedcba9876543210".repeat(4);
        for path in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods/besteffort/pod1/cri-containerd-{id}.scope"),
            format!("/kubepods/pod1/{id}"),
        ] {
            assert_eq!(container_id(&path), Some(id.clone()), "{path}");
        }
        assert_eq!(container_id("/system.slice/nginx.service"), None);
    }
}
