# What the scripts beside this share: source it from the project's folder.

PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
target=${CARGO_TARGET_DIR:-target}

# step WHAT : says what begins, on stderr, so that stdout stays the runner's.
step() { echo "== $*" >&2; }

# run_as_root COMMAND… : namespaces need it. The environment that cargo and rustup look at is kept.
run_as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo --preserve-env=HOME,CARGO_HOME,RUSTUP_HOME,CARGO_TARGET_DIR,RUST_LOG,HOLDFAST_FULL env "PATH=$PATH" "$@"
  fi
}
