//! What a sample's process is.

use std::sync::Arc;

use crate::batch::Placed;
use crate::files::Files;
use crate::held::Held;
use crate::images::Images;
use crate::service::Services;

/// Returns what a sample's process is.
pub(super) fn place(
    held: &Held,
    images: &mut Images,
    files: &mut Files,
    services: &mut Services,
    cgroup: Option<&str>,
) -> Placed {
    use strobe_bpf::StackEnd as Side;
    let Some(image) = images.of_sample(held, files) else {
        let belonging = services.decide(None, cgroup, None, held.name());
        return Placed {
            belonging,
            executable: None,
        };
    };
    let executable = image.executable.clone();
    if image.is_bare() && held.user_end == Side::NoUser {
        return Placed {
            belonging: services.kernel(),
            executable,
        };
    }
    if let Some(belonging) = image.belonging(held.cgroup_id) {
        let belonging = Arc::clone(belonging);
        return Placed {
            belonging,
            executable,
        };
    }
    let number = image.number;
    let variable = images.variable(held.pid, number);
    let belonging = services.decide(variable.as_deref(), cgroup, executable.as_deref(), held.name());
    // Within `exec` the new image has no file and perhaps no environment yet: the next sample asks again.
    if held.user_end != Side::Exec
        && let Some(image) = images.of_sample(held, files)
    {
        image.belongs(held.cgroup_id, Arc::clone(&belonging));
    }
    Placed {
        belonging,
        executable,
    }
}
