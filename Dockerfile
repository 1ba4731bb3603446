# CPU image of API and worker. The CPU build of torch is taken from PyTorch's own index; build with
# --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 for a CUDA one.
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" "torch>=2.11,<2.14"

WORKDIR /opt/nightmill
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY api api
COPY worker worker
COPY engine engine
COPY kernels kernels
COPY db db
RUN pip install --no-cache-dir . \
 && useradd --create-home --uid 10001 nightmill \
 && install -d -o nightmill /home/nightmill/.nightmill /data

USER nightmill
EXPOSE 8642
ENTRYPOINT ["nightmill"]
CMD ["up"]
