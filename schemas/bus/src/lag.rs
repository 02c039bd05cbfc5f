//! How far a group has come, asked from outside: nobody joins.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, DefaultConsumerContext};
use rdkafka::topic_partition_list::TopicPartitionList;

use crate::consumer::{Lag, lags};
use crate::error::Error;
use crate::settings::BusSettings;

/// Returns how far `group` has committed each partition of `topic`, and how far it goes.
pub fn group_lag(
    settings: &BusSettings,
    group: &str,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<Lag>, Error> {
    // Never subscribed, so never a member: reading the group's offsets disturbs nobody.
    let base: BaseConsumer<DefaultConsumerContext> = settings
        .consumer(Some(group))
        .create()
        .map_err(Error::kafka("making a consumer"))?;
    let mut list = TopicPartitionList::new();
    for partition in partition_numbers(&base, settings, topic, timeout)? {
        list.add_partition(topic, partition);
    }
    lags(&base, list)
}

/// Returns the numbers of a topic's partitions.
pub(crate) fn partition_numbers<C: ConsumerContext>(
    base: &BaseConsumer<C>,
    settings: &BusSettings,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<i32>, Error> {
    let metadata = base
        .fetch_metadata(Some(topic), timeout)
        .map_err(|source| Error::Unreachable {
            bootstrap: settings.bootstrap().to_owned(),
            source,
        })?;
    let found = metadata
        .topics()
        .iter()
        .find(|found| found.name() == topic && found.error().is_none());
    match found {
        Some(found) if !found.partitions().is_empty() => Ok(found
            .partitions()
            .iter()
            .map(rdkafka::metadata::MetadataPartition::id)
            .collect()),
        _ => Err(Error::TopicMissing {
            topic: topic.to_owned(),
        }),
    }
}
