# ClickHouse's engine behind its HTTP interface (infra/clickhouse), for places where `clickhouse/clickhouse-server` cannot be
# had. The Python packages are those that `engine.sh install` put into the environment of the machine that builds.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG VERSION
ARG BASE_BYTES
LABEL org.opencontainers.image.title="strobe-engine" org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" io.strobe.base-bytes="${BASE_BYTES}"
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv curl \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/dpkg.log /var/log/apt \
 && groupadd --system --gid 10001 strobe \
 && useradd --system --uid 10001 --gid strobe --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin strobe \
 && install -d -o strobe -g strobe -m 0750 /var/lib/strobe-engine /var/lib/strobe-secrets \
      /var/lib/strobe-secrets/writer /var/lib/strobe-secrets/reader \
 && python3 -m venv --without-pip /opt/strobe/venv
COPY infra /opt/strobe/infra
COPY site-packages /opt/strobe/venv/lib/python3.11/site-packages
# Another Python than the packages were made for shows here.
RUN PYTHONPATH=/opt/strobe/infra/clickhouse PYTHONDONTWRITEBYTECODE=1 /opt/strobe/venv/bin/python -m front --help >/dev/null
ENV STROBE_HOME=/var/lib/strobe-engine STROBE_CLICKHOUSE_VENV=/opt/strobe/venv STROBE_CLICKHOUSE_HOST=0.0.0.0 \
    STROBE_CLICKHOUSE_DATA=/var/lib/strobe-engine/data \
    STROBE_CLICKHOUSE_WRITER_PASSWORD_FILE=/var/lib/strobe-secrets/writer/password \
    STROBE_CLICKHOUSE_READER_PASSWORD_FILE=/var/lib/strobe-secrets/reader/password
USER strobe:strobe
VOLUME /var/lib/strobe-engine
EXPOSE 8123
ENTRYPOINT ["/opt/strobe/infra/clickhouse/engine.sh"]
CMD ["run"]
