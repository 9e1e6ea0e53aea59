#!/usr/bin/env bash
# A broker with TLS and tokens, and common tasks of its operator: settings, tokens, backup and
# restore. Needs openssl.
#
#     bash examples/operations.sh
set -euo pipefail
umask 077
cd "$(mktemp -d)"
trap stop EXIT

# Start a broker with a data folder, and wait until it is ready.
start() {
    rm -f ready.json
    ister serve --quiet --port 0 --http-port 0 --no-grpc --data "$1" --ready-file ready.json \
        --tls-cert broker.pem --tls-key broker.key --tokens tokens.txt 2> broker.log &
    broker=$!
    until [ -e ready.json ]; do sleep 0.05; done
    ISTER_URL=$(python -c 'import json; print(json.load(open("ready.json"))["url"])')
    export ISTER_URL
}

stop() {
    kill "$broker"
    wait "$broker"
}

# Certificate and tokens. Clients trust the certificate and present a token.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 \
    -keyout broker.key -out broker.pem -subj "/CN=broker" -addext "subjectAltName=IP:127.0.0.1" 2> /dev/null
openssl rand -hex 32 > ops.token
echo "ops $(cat ops.token)" > tokens.txt
start data

echo "== without the certificate and a token"
ister topics list || echo "exit code $?"
export ISTER_TLS_CA=broker.pem
ister topics list || echo "exit code $?"
export ISTER_TOKEN_FILE=ops.token

echo "== a topic, and a subscription that falls behind"
ister topics create orders --kind stream --max-age 7d
seq 5 | ister produce orders
ister consume orders --subscription billing --start earliest --count 2
ister top --once

echo "== changes while it runs"
ister topics update orders --max-age 30d
ister subs update orders billing --ack-timeout 5m --max-deliveries 3
ister subs describe orders billing

echo "== a token is revoked, and a new one is valid"
openssl rand -hex 32 > new.token
echo "ops $(cat new.token)" > tokens.new && mv tokens.new tokens.txt
until ISTER_TOKEN_FILE=new.token ister topics list; do sleep 0.1; done
ister topics list || echo "exit code $?"
export ISTER_TOKEN_FILE=new.token

echo "== a backup while it runs, and a new broker from it"
seq 6 8 | ister produce orders
ister storage backup backup --data data
ister produce orders "published after the backup"
stop
ister storage restore backup --data restored
start restored
ister topics describe orders
ister consume orders --subscription billing --count 6
