#!/bin/sh
# Makes the secrets that compose.yaml hands to the containers as files, under secrets/. What is there already stays.
# The containers run as other users than you: the folder is yours alone, the files in it are readable to who is given them.
set -eu
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets

random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
keep() { [ -e "secrets/$1" ] || cat > "secrets/$1"; chmod 644 "secrets/$1"; }

random 24 | keep postgres_password
random 24 | keep redis_password
random 24 | keep grafana_password
random 24 | keep flower_password
echo "none yet: docker compose run --rm -T migrate keys create metrics --role read" | keep metrics_key
printf 'postgresql://nightmill:%s@postgres/nightmill' "$(cat secrets/postgres_password)" | keep nightmill_database_url
printf 'redis://:%s@redis:6379/0' "$(cat secrets/redis_password)" | keep nightmill_redis_url

access="nightmill"
secret="$(random 24)"
[ ! -e secrets/aws_credentials ] || secret="$(sed -n 's/^aws_secret_access_key *= *//p' secrets/aws_credentials)"
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$access" "$secret" | keep aws_credentials
printf '{"identities": [{"name": "nightmill", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Admin"]}]}\n' \
  "$access" "$secret" | keep s3_config
