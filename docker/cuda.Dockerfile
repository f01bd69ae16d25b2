# Carry with the CUDA backend. From the root of a clone, and on a machine with the NVIDIA container toolkit:
#   docker build -f docker/cuda.Dockerfile -t carry-cuda .
#   docker run --rm --gpus all -p 127.0.0.1:8080:8080 -v MODEL-FOLDER:/model carry-cuda          carry serve: the chat page and the API
#   docker run --rm --gpus all carry-cuda bench scan:dense:t1024:n32:device=cuda
# CUDA is that of the driver or older: docker build --build-arg CUDA=12.6.3 ...
ARG CUDA=12.6.3
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc g++ cmake ninja-build make \
        pkg-config dpkg-dev file libopenblas-dev libopenmpi-dev libsqlite3-dev libyaml-dev zlib1g-dev libpcre2-dev \
        libutf8proc-dev libwebsockets-dev libjpeg-dev libcurl4-openssl-dev && rm -rf /var/lib/apt/lists/*
COPY . /carry
WORKDIR /carry
RUN rm -rf build && CMAKE_GENERATOR=Ninja CUDA=ON JOBS="$(nproc)" tools/package

# cuBLASLt, NCCL and CUPTI are opened at run time where they are found: this image has them.
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04
COPY --from=build /carry/build/package/*.deb /tmp/
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /tmp/*.deb \
    && rm -rf /var/lib/apt/lists/* /tmp/*.deb
RUN useradd --create-home --home-dir /srv/carry carry
USER carry
WORKDIR /srv/carry
EXPOSE 8080
ENTRYPOINT ["carry"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--open"]
