# The broker of infra/kafka, for places where `apache/kafka` cannot be had. One node, no authentication: for a look at the
# system, and for tests.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG VERSION
ARG BASE_BYTES
LABEL org.opencontainers.image.title="strobe-broker" org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" io.strobe.base-bytes="${BASE_BYTES}"
# A slim base has no folder for manual pages, and Java's package wants to put a link there.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/dpkg.log /var/log/apt \
 && groupadd --system --gid 10001 strobe \
 && useradd --system --uid 10001 --gid strobe --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin strobe \
 && install -d -o strobe -g strobe -m 0750 /var/lib/strobe-broker
COPY infra /opt/strobe/infra
COPY jars /opt/strobe/jars
ENV STROBE_HOME=/var/lib/strobe-broker STROBE_KAFKA_JARS=/opt/strobe/jars STROBE_KAFKA_HOST=0.0.0.0
USER strobe:strobe
VOLUME /var/lib/strobe-broker
EXPOSE 9092
ENTRYPOINT ["/opt/strobe/infra/kafka/broker.sh"]
CMD ["run"]
