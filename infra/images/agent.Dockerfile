# The agent: one process, a user of its own, and the capabilities that its file may hand it. `build.sh` makes the context.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG VERSION
ARG BASE_BYTES
LABEL org.opencontainers.image.title="strobe-agent" org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" io.strobe.base-bytes="${BASE_BYTES}"
# What the executable links to, and authorities to trust a bus by.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libelf1 libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/dpkg.log /var/log/apt \
 && groupadd --system --gid 10001 strobe \
 && useradd --system --uid 10001 --gid strobe --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin strobe \
 && install -d -o strobe -g strobe -m 0750 /var/lib/strobe-agent /var/lib/strobe /var/lib/strobe/symbols
# An archive, because capabilities of a file survive no other way into an image: see file_capabilities.py.
ADD strobe-agent.tar /
# A library that is missing, or older than what it was built with, shows here and not on a host.
RUN strobe-agent --version
USER strobe:strobe
VOLUME /var/lib/strobe-agent
ENTRYPOINT ["strobe-agent"]
CMD ["run"]
