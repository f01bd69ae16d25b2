# Carry on the CPU: the Debian packages, built and installed. From the root of a clone:
#   docker build -f docker/cpu.Dockerfile -t carry .
#   docker run --rm -p 127.0.0.1:8080:8080 -v MODEL-FOLDER:/model carry          carry serve: the chat page and the API
#   docker run --rm carry bench scan:dense:t1024:n32
#   docker run --rm -p 127.0.0.1:8080:8080 -e CARRY_TOKEN=a-long-secret-token carry stream --serve --address 0.0.0.0
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev cmake ninja-build make pkg-config dpkg-dev file \
        libopenblas-dev libopenmpi-dev libsqlite3-dev libyaml-dev zlib1g-dev libpcre2-dev libutf8proc-dev \
        libwebsockets-dev libjpeg62-turbo-dev libcurl4-openssl-dev && rm -rf /var/lib/apt/lists/*
COPY . /carry
WORKDIR /carry
RUN rm -rf build && CMAKE_GENERATOR=Ninja JOBS="$(nproc)" tools/package

FROM debian:bookworm-slim
COPY --from=build /carry/build/package/*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/*.deb && rm -rf /var/lib/apt/lists/* /tmp/*.deb
RUN useradd --create-home --home-dir /srv/carry carry
USER carry
WORKDIR /srv/carry
EXPOSE 8080
ENTRYPOINT ["carry"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--open"]
