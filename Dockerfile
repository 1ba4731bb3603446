# Two images from one recipe: `--target cpu` and `--target cuda`. Both are the API and the worker; the worker of the second
# computes on an NVIDIA GPU. torch comes from pip's default index (on Linux with CUDA libraries); for a smaller CPU image
# name the index that PyTorch's install page gives: docker build --target cpu --build-arg TORCH_INDEX_URL=… .
FROM python:3.12-slim-bookworm AS base

# A C++ compiler: the engine compiles its own code for the processor that it finds, Triton its launchers.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*

# HOME is the one folder that is kept and can be written: caches of compiled code and of the hub's models go there too.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NIGHTMILL_HOME=/home/nightmill/.nightmill \
    HOME=/home/nightmill/.nightmill

RUN groupadd --gid 10001 nightmill \
 && useradd --create-home --uid 10001 --gid nightmill nightmill \
 && install --directory --owner nightmill --group nightmill /home/nightmill/.nightmill /data

WORKDIR /opt/nightmill
ENTRYPOINT ["nightmill"]
CMD ["up"]

FROM base AS cuda
RUN pip install --no-cache-dir "torch>=2.11,<2.14"
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY api api
COPY worker worker
COPY engine engine
COPY kernels kernels
COPY db db
RUN pip install --no-cache-dir .
ENV NIGHTMILL_ENGINE_DEVICE=cuda
USER nightmill
EXPOSE 8642

FROM base AS cpu
ARG TORCH_INDEX_URL=""
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "torch>=2.11,<2.14"
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY api api
COPY worker worker
COPY engine engine
COPY kernels kernels
COPY db db
RUN pip install --no-cache-dir .
USER nightmill
EXPOSE 8642
