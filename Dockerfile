# Two stages: the build tools stay behind, the image holds one virtual environment. Nothing in here depends on the
# processor: it builds for amd64 and arm64 alike.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY exporter exporter
RUN python -m venv /opt/training-exporter \
 && /opt/training-exporter/bin/pip install --no-cache-dir --constraint constraints.txt . \
 && install --directory --owner=14311 --group=14311 /state

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/training-exporter /opt/training-exporter
COPY --from=build --chown=14311:14311 /state /var/lib/training-exporter
# The NVIDIA container runtime puts the driver's library in place; `utility` is what NVML needs, and no more.
ENV PATH=/opt/training-exporter/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    STATE_DIRECTORY=/var/lib/training-exporter \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# Any number without an entry in /etc/passwd will do; the root file system may be read-only. To see other users'
# processes the container must run as root with four capabilities: docs/install.md.
USER 14311:14311
VOLUME /var/lib/training-exporter
EXPOSE 14311
# For the default address without TLS; with another one give your own, or --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:14311/-/healthy', timeout=4)"]
ENTRYPOINT ["training-exporter"]
