//! The lives of requests, as the bus tells them: pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use strobe_event::request::NO_RUN;
use strobe_event::{Action, Phase, Request, RequestId, RequestState, RunId};

use super::Heard;
use crate::times::shown;

/// The life of one request.
#[derive(Debug, Default)]
pub struct Life {
    /// What was asked for, where that could be read.
    pub request: Option<Request>,
    /// When the broker took it, microseconds since 1970.
    pub asked_us: u64,
    /// What was said last of the request as a whole.
    pub whole: Option<RequestState>,
    /// What was said last of each host.
    pub hosts: BTreeMap<String, RequestState>,
    /// Since when each host has sampled, microseconds since 1970 by the broker's clock.
    pub began: BTreeMap<String, u64>,
    /// What was said after a host's end.
    pub late: Vec<RequestState>,
}

/// The phase of a state; nothing where it is of a newer version.
fn phase_of(state: &RequestState) -> Option<Phase> {
    Phase::from_code(state.phase)
}

impl Life {
    /// Takes in what is heard; returns the state, where it is one that counts.
    pub fn take(&mut self, heard: Heard) -> Option<RequestState> {
        match heard {
            Heard::Asked(signed, at_us) => {
                // The first counts, and a cancellation is no question.
                if self.asked_us == 0 {
                    self.asked_us = at_us;
                    let opened = signed.open(at_us).ok();
                    self.request =
                        opened.filter(|request| Action::from_code(request.action) == Some(Action::Profile));
                }
                None
            }
            Heard::State(state) if state.late => {
                self.late.push(*state);
                None
            }
            Heard::State(state) => {
                let known = match state.host.as_str() {
                    "" => self.whole.as_ref(),
                    host => self.hosts.get(host),
                };
                // The first final phase counts, whoever says another.
                if known.and_then(phase_of).is_some_and(Phase::is_final) {
                    return None;
                }
                let said = (*state).clone();
                match said.host.is_empty() {
                    true => self.whole = Some(said),
                    false => {
                        if phase_of(&said) == Some(Phase::Running) {
                            self.began.entry(said.host.clone()).or_insert(said.time_us);
                        }
                        self.hosts.insert(said.host.clone(), said);
                    }
                }
                Some(*state)
            }
        }
    }

    /// Returns the final phase of the request as a whole, once it has one.
    pub fn end(&self) -> Option<Phase> {
        self.whole
            .as_ref()
            .and_then(phase_of)
            .filter(|phase| phase.is_final())
    }

    /// Returns the phase of the request as a whole, as people see it.
    pub fn phase(&self) -> &'static str {
        let running = |state: &RequestState| phase_of(state) == Some(Phase::Running);
        match self.whole.as_ref().and_then(phase_of) {
            Some(Phase::Asked) if self.hosts.values().any(running) => Phase::Running.name(),
            Some(phase) => phase.name(),
            None => "unread",
        }
    }

    /// Returns the runs that answer it.
    pub fn runs(&self) -> Vec<RunId> {
        let answers =
            |state: &&RequestState| state.run != NO_RUN && phase_of(state).is_some_and(Phase::has_begun);
        self.hosts
            .values()
            .filter(answers)
            .map(|state| state.run)
            .collect()
    }

    /// Returns the samples taken and lost, so far.
    pub fn samples(&self) -> (u64, u64) {
        self.hosts.values().fold((0, 0), |(taken, dropped), state| {
            (taken + state.taken, dropped + state.dropped)
        })
    }

    /// Returns what it is about, in a few words.
    pub fn target(&self) -> String {
        let Some(request) = &self.request else {
            return "?".into();
        };
        let mut parts = Vec::new();
        for (name, value) in [
            ("service", &request.service),
            ("region", &request.region),
            ("host", &request.host),
        ] {
            if !value.is_empty() {
                parts.push(format!("{name} {value}"));
            }
        }
        if request.pid != 0 {
            parts.push(format!("pid {}", request.pid));
        }
        parts.join(", ")
    }

    /// Returns it for scripts.
    pub fn as_json(&self, id: RequestId) -> Value {
        let state = |state: &RequestState| {
            json!({
                "phase": phase_of(state).map_or("?", Phase::name), "time": shown(state.time_us),
                "running_since_us": self.began.get(&state.host),
                "run": (state.run != NO_RUN).then(|| state.run.to_string()),
                "taken": state.taken, "dropped": state.dropped, "detail": state.detail,
            })
        };
        let hosts: serde_json::Map<String, Value> = self
            .hosts
            .iter()
            .map(|(host, last)| (host.clone(), state(last)))
            .collect();
        let asked = self.request.as_ref();
        json!({
            "id": id.to_string(), "asked": shown(self.asked_us), "phase": self.phase(),
            "detail": self.whole.as_ref().map(|whole| whole.detail.as_str()),
            "who": asked.map(|request| request.who.as_str()), "why": asked.map(|request| request.why.as_str()),
            "origin": asked.map(|request| request.origin.as_str()),
            "profiler": asked.map(|request| request.profiler.as_str()), "target": self.target(),
            "duration_s": asked.map(|request| request.duration_us as f64 / 1e6),
            "hosts": hosts, "late": self.late.len(),
        })
    }
}

/// The lives of all requests that were heard of.
#[derive(Debug, Default)]
pub struct Lives(pub BTreeMap<RequestId, Life>);

impl Lives {
    /// Takes in what is heard.
    pub fn take(&mut self, id: RequestId, heard: Heard) -> Option<RequestState> {
        self.0.entry(id).or_default().take(heard)
    }

    /// Returns the one whose id begins so.
    ///
    /// # Errors
    /// For people: there is none, or more than one.
    pub fn find(&self, text: &str) -> Result<RequestId, String> {
        let text = text.to_lowercase();
        let mut found = self.0.keys().filter(|id| id.to_string().starts_with(&text));
        match (found.next(), found.next()) {
            (Some(id), None) => Ok(*id),
            (None, _) => Err(format!(
                "no request `{text}`: `strobe runs list` shows which there are"
            )),
            (Some(_), Some(_)) => Err(format!(
                "more than one request begins with `{text}`: type more of it"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(id: u8, host: &str, phase: Phase, late: bool) -> Heard {
        Heard::State(Box::new(RequestState {
            id: RequestId([id; 16]),
            host: host.into(),
            phase: phase as u8,
            late,
            time_us: 1,
            life: [0; 16],
            left_us: 0,
            run: RunId([id; 16]),
            taken: 5,
            dropped: 1,
            detail: String::new(),
        }))
    }

    /// Checks that the first final phase of a host counts, whatever is said later by whomever.
    #[test]
    fn the_first_end_counts() {
        let mut life = Life::default();
        life.take(state(1, "a", Phase::Running, false));
        assert!(life.take(state(1, "a", Phase::Lost, false)).is_some());
        assert!(life.take(state(1, "a", Phase::Finished, false)).is_none());
        assert!(life.take(state(1, "a", Phase::Finished, true)).is_none());
        assert_eq!(phase_of(&life.hosts["a"]), Some(Phase::Lost));
        assert_eq!(
            (life.late.len(), life.samples(), life.runs().len()),
            (1, (5, 1), 1)
        );
        assert_eq!(life.end(), None);
        life.take(state(1, "", Phase::Lost, false));
        assert_eq!(life.end(), Some(Phase::Lost));
    }

    /// Checks that a request is found by the beginning of its id, and that what is not one is said.
    #[test]
    fn requests_are_found_by_their_beginning() {
        let mut lives = Lives::default();
        for id in [0x11, 0x12, 0x22] {
            lives.take(RequestId([id; 16]), state(id, "", Phase::Asked, false));
        }
        assert_eq!(lives.find("22"), Ok(RequestId([0x22; 16])));
        assert!(lives.find("1").unwrap_err().contains("more than one"));
        assert!(lives.find("3").unwrap_err().contains("no request"));
    }
}
