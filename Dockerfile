# A fleet's server or node. docs/deploy.md ("In a container") has the commands, and says when port 8000 may be published.
# Checked by hadolint; the authors have not built it.
FROM python:3.12-slim AS build
# PyTorch for CPUs, which is much smaller. For CUDA: docker build --build-arg TORCH_INDEX= .
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY . .
RUN python -m venv /opt/sparsona \
    && /opt/sparsona/bin/pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch \
    && /opt/sparsona/bin/pip install --no-cache-dir -c constraints.txt ".[flower]"

FROM python:3.12-slim
COPY --from=build /opt/sparsona /opt/sparsona
ENV PATH="/opt/sparsona/bin:$PATH"
RUN useradd --create-home --uid 1000 sparsona && mkdir /data && chown sparsona:sparsona /data
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGINT
ENTRYPOINT ["sparsona"]
CMD ["--help"]
