#!/usr/bin/env bash
# Trains small copies of published architectures under fully_shard with a bfloat16 policy; arguments are
# those of tests/python/sweep_models.py. The packages that define the models go into .venv-models, on top
# of the torch in .venv, and are downloaded when it is made. Weights are random: none are downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-models
if [ ! -e $venv/ready ]; then
  echo "models: pip install transformers diffusers peft timm into $venv"
  python3 -m venv $venv
  site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/torch.pth"
  pip="$venv/bin/python -m pip install --disable-pip-version-check --quiet"
  $pip transformers diffusers peft accelerate
  $pip --no-deps timm  # its torchvision would bring another torch
  version=$($venv/bin/python -c 'import torch; a, b = torch.__version__.split(".")[:2]; print(f"0.{int(b) + 15}")')
  $pip --no-deps "torchvision==$version.*"
  touch $venv/ready
fi
PYTHONPATH=build/python exec $venv/bin/python tests/python/sweep_models.py "$@"
