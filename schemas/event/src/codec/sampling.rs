//! Coverage, plans, tuners and hosts on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::{CoverageRecord, HostRecord, PlanRecord, TunerRecord};

impl Fields for CoverageRecord {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("service", &self.service)?;
        to.text("profiler", &self.profiler)?;
        to.text("host", &self.host)?;
        to.long(self.slot_us);
        to.long(self.hour);
        to.long(self.until_us);
        to.long(self.revision);
        to.long(self.planned);
        to.long(self.refused);
        to.long(self.complete);
        to.long(self.cut_short);
        to.double(self.drawn_inverse);
        to.long(self.done_us);
        to.long(self.taken);
        to.long(self.cpu_us);
        to.code(self.cpu_source);
        to.long(self.runs);
        for sum in [self.u, self.uu, self.t, self.tt, self.tu] {
            to.double(sum);
        }
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            service: from.text("service")?,
            profiler: from.text("profiler")?,
            host: from.text("host")?,
            slot_us: from.long("slot_us")?,
            hour: from.long("hour")?,
            until_us: from.long("until_us")?,
            revision: from.long("revision")?,
            planned: from.long("planned")?,
            refused: from.long("refused")?,
            complete: from.long("complete")?,
            cut_short: from.long("cut_short")?,
            drawn_inverse: from.double("drawn_inverse")?,
            done_us: from.long("done_us")?,
            taken: from.long("taken")?,
            cpu_us: from.long("cpu_us")?,
            cpu_source: from.code("cpu_source")?,
            runs: from.long("runs")?,
            u: from.double("u")?,
            uu: from.double("uu")?,
            t: from.double("t")?,
            tt: from.double("tt")?,
            tu: from.double("tu")?,
        })
    }
}

impl Fields for PlanRecord {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("service", &self.service)?;
        to.text("profiler", &self.profiler)?;
        to.text("selector", &self.selector)?;
        to.double(self.run_probability);
        to.long(self.planned_us);
        to.double(self.frequency_hz);
        to.long(self.since_us);
        to.double(self.keep);
        to.long(self.keep_since_us);
        to.double(self.keep_before);
        to.text("why", &self.why)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            service: from.text("service")?,
            profiler: from.text("profiler")?,
            selector: from.text("selector")?,
            run_probability: from.double("run_probability")?,
            planned_us: from.long("planned_us")?,
            frequency_hz: from.double("frequency_hz")?,
            since_us: from.long("since_us")?,
            keep: from.double("keep")?,
            keep_since_us: from.long("keep_since_us")?,
            keep_before: from.double("keep_before")?,
            why: from.text("why")?,
        })
    }
}

impl Fields for TunerRecord {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.plan.write(to)?;
        to.long(self.window_us);
        to.double(self.desired_per_hour);
        to.double(self.observed_per_hour);
        to.double(self.expected_per_hour);
        to.double(self.reachable_per_hour);
        to.long(self.live_hosts);
        to.texts("doubted", &self.doubted)?;
        to.texts("same_name", &self.same_name)?;
        to.text("state", &self.state)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            plan: PlanRecord::read(from)?,
            window_us: from.long("window_us")?,
            desired_per_hour: from.double("desired_per_hour")?,
            observed_per_hour: from.double("observed_per_hour")?,
            expected_per_hour: from.double("expected_per_hour")?,
            reachable_per_hour: from.double("reachable_per_hour")?,
            live_hosts: from.long("live_hosts")?,
            doubted: from.texts("doubted")?,
            same_name: from.texts("same_name")?,
            state: from.text("state")?,
        })
    }
}

impl Fields for HostRecord {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("host", &self.host)?;
        to.long(self.time_us);
        to.text("agent", &self.agent)?;
        to.text("kernel", &self.kernel)?;
        to.int("cpus", self.cpus)?;
        to.texts("labels", &self.labels)?;
        to.texts("services", &self.services)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            host: from.text("host")?,
            time_us: from.long("time_us")?,
            agent: from.text("agent")?,
            kernel: from.text("kernel")?,
            cpus: from.int("cpus")?,
            labels: from.texts("labels")?,
            services: from.texts("services")?,
        })
    }
}
