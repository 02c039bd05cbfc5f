# Every role but the agent's, and the tool that people type: `run processor`, `run sink`, `top`. No capability, no root.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG VERSION
ARG BASE_BYTES
LABEL org.opencontainers.image.title="strobe" org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" io.strobe.base-bytes="${BASE_BYTES}"
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/dpkg.log /var/log/apt \
 && groupadd --system --gid 10001 strobe \
 && useradd --system --uid 10001 --gid strobe --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin strobe \
 && install -d -o strobe -g strobe -m 0750 /var/lib/strobe /var/lib/strobe/symbols
COPY strobe /usr/bin/strobe
RUN strobe --version
USER strobe:strobe
ENTRYPOINT ["strobe"]
CMD ["--help"]
