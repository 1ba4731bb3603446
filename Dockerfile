# One image for API and worker. torch comes from pip's default index (a CUDA build on Linux); for a smaller CPU image
# name the index that PyTorch's install page gives: docker build --build-arg TORCH_INDEX_URL=… .
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX_URL=""
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "torch>=2.11,<2.14"

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
