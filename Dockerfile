# Two stages: the build tools stay behind, the image holds one virtual environment.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY exporter exporter
RUN python -m venv /opt/training-exporter \
 && /opt/training-exporter/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:${PYTHON}-slim
COPY --from=build /opt/training-exporter /opt/training-exporter
# The NVIDIA container runtime puts the driver's library in place; `utility` is what NVML needs, and no more.
ENV PATH=/opt/training-exporter/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# Any number without an entry in /etc/passwd will do; the root file system may be read-only.
USER 14311:14311
EXPOSE 14311
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:14311/-/healthy', timeout=4)"]
ENTRYPOINT ["training-exporter"]
