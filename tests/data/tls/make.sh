#!/bin/sh
# Makes the certificates of the TLS tests: an authority, a server, a client, and a client of a stranger's authority.
# They are worth nothing outside the tests and are valid for a century.
set -eu
cd "$(dirname "$0")"
authority() { # name
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=$1 authority" \
        -addext keyUsage=critical,keyCertSign -keyout "$1.key" -out "$1.pem" 2>/dev/null
}
signed() { # name, authority, subject alternative names
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'subjectAltName=%s\nauthorityKeyIdentifier=keyid\n' "$3" > extensions
    openssl x509 -req -in "$1.csr" -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days 36500 -extfile extensions \
        -out "$1.pem" 2>/dev/null
    rm "$1.csr" extensions
}
authority ca
authority strangers
signed server ca DNS:localhost,IP:127.0.0.1,IP:::1
signed client ca DNS:prometheus
signed stranger strangers DNS:prometheus
openssl ec -in server.key -aes128 -passout pass:secret -out encrypted.key 2>/dev/null
rm -f ./*.srl ca.key strangers.key
