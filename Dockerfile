# The project with its environment in one image, at /opt/cobalt.
#   docker build -t cobalt .                                    the profile cpu
#   docker build -t cobalt-gpu --build-arg PROFILE=gpu .        the profile gpu; the driver comes from the host
# Sandboxes need three options of `docker run` (docs/cluster.md); compose.yaml has them. `git` names the commit in run.json.
# To build on exactly one base image, add its digest: FROM python:3.11-slim-bookworm@sha256:... (docs/security.md).
FROM python:3.11-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# A compiler for the kernels that are compiled at run time; iproute2 for scripts/ray_cluster.sh --interface.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
      bubblewrap build-essential git iproute2 procps && rm -rf /var/lib/apt/lists/*
COPY . /opt/cobalt
WORKDIR /opt/cobalt
ARG PROFILE=cpu
RUN bash scripts/setup.sh --profile "$PROFILE"
ENV PATH=/opt/cobalt/.venv/bin:$PATH
CMD ["bash"]
