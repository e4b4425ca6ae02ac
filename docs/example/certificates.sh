#!/bin/bash
# Makes certificates for trying the example: an authority, and one certificate each for the ledger and the wallet.
# They are valid for 30 days, for the names ledger, wallet and localhost. Not for production: use your cluster's own.
set -eu
if [ $# -ne 1 ] || [ "$1" = --help ]; then
  echo "usage: $0 FOLDER    makes ca.pem, ledger.pem, ledger.key, wallet.pem and wallet.key in it"
  [ "${1:-}" = --help ] && exit 0 || exit 2
fi
command -v openssl >/dev/null || { echo "$0: openssl is missing: apt-get install openssl"; exit 1; }
mkdir -p "$1"
cd "$1"
umask 077
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 30 -subj "/CN=penstock example authority" -out ca.pem
for name in ledger wallet; do
  openssl ecparam -name prime256v1 -genkey -noout -out "$name.key"
  openssl req -new -key "$name.key" -subj "/CN=$name" -out "$name.csr"
  openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out "$name.pem" \
    -extfile <(printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' "$name") 2>/dev/null
  rm "$name.csr"
done
echo "made in $PWD: ca.pem ledger.pem ledger.key wallet.pem wallet.key"
