//! Who signed a request, and whether they may have it.

use std::path::Path;
use std::time::SystemTime;

use strobe_event::{Cause, Request, SignedRequest};
use strobe_signing::{Action as Right, Namespace, Refusal, Signers};

use super::desk::{NotProved, Prove};
use crate::error::AgentError;

/// The signers that count on this host.
#[derive(Debug)]
pub struct Proof {
    signers: Signers,
}

impl Proof {
    /// Returns the signers of a file; nobody where the configuration names none.
    ///
    /// # Errors
    /// [`AgentError::Signing`] where the file cannot be used.
    pub fn load(signers: &Path) -> Result<Self, AgentError> {
        let signers = match signers.as_os_str().is_empty() {
            true => Signers::none("its configuration names no `signers`, so nobody may ask"),
            false => Signers::load(signers)?,
        };
        Ok(Self { signers })
    }
}

impl Prove for Proof {
    fn prove(&self, signed: &SignedRequest, of: &Request, owner: Option<&str>) -> Result<String, NotProved> {
        let verified = self
            .signers
            .verify(
                Namespace::Request,
                &signed.payload,
                &signed.signature,
                SystemTime::now(),
            )
            .map_err(|refusal| not_proved(&refusal))?;
        let principal = verified.principal().to_owned();
        let right = match (owner, Cause::from_code(of.cause)) {
            (Some(owner), _) if owner == principal => return Ok(principal),
            (Some(_), _) => Right::Cancel,
            (None, Some(Cause::Triggered)) => Right::Trigger,
            (None, Some(Cause::Ring)) => Right::Ring,
            (None, _) => Right::Profile,
        };
        verified
            .may(right, &of.service, &of.profiler)
            .map_err(|refusal| NotProved {
                principal: Some(principal.clone()),
                ..not_proved(&refusal)
            })?;
        Ok(principal)
    }
}

fn not_proved(refusal: &Refusal) -> NotProved {
    NotProved {
        reason: refusal.reason(),
        principal: None,
        why: refusal.to_string(),
    }
}
