# A fleet's node or server: docker build -t sparsona . ; docs/deploy.md has the commands to run in it.
# Checked by hadolint; the authors have not built it.
#
#   docker run -p 8000:8000 -v sparsona-server:/data sparsona fleet server /data/server --host 0.0.0.0 --port 8000
#   docker run -v sparsona-node:/data sparsona fleet node fleet.example.org:8000 --client 0 \
#       --ca /data/ca.crt --key /data/north.key --data /data/mine.npz --classes 10 --home /data/node
#
# Orders (fleet run, fleet status) are accepted from the server's own machine: give them by docker exec in its container.
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/sparsona \
    && /opt/sparsona/bin/pip install --no-cache-dir -c constraints.txt torch \
    && /opt/sparsona/bin/pip install --no-cache-dir -c constraints.txt ".[flower]"

FROM python:3.12-slim
COPY --from=build /opt/sparsona /opt/sparsona
RUN useradd --create-home --uid 1000 sparsona && mkdir /data && chown sparsona:sparsona /data
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGINT
ENTRYPOINT ["/opt/sparsona/bin/sparsona"]
CMD ["--help"]
