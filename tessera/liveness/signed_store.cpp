#include "tessera/liveness/signed_store.h"

#include <c10/util/Exception.h>

#include "tessera/base/text.h"
#include "tessera/liveness/sha256.h"

namespace tessera::comm {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kCode = 16;  // bytes of the digest that are kept, as in TLS and IPsec

std::string_view text_view(const Bytes& bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

/// The key's length separates "ab" + "c" from "a" + "bc".
Digest code_of(const std::string& secret, const std::string& key, std::string_view value) {
  return hmac_sha256(secret, join_text("store ", key.size(), " ", key, value));
}

}  // namespace

SignedStore::SignedStore(StorePtr store, std::string secret)
    : Store(store->getTimeout()), store_(std::move(store)), secret_(std::move(secret)) {}

SignedStore::StorePtr SignedStore::clone() {
  return c10::make_intrusive<SignedStore>(store_->clone(), secret_);
}

Bytes SignedStore::sign(const std::string& key, const Bytes& value) const {
  const Digest code = code_of(secret_, key, text_view(value, value.size()));
  Bytes out = value;
  out.insert(out.end(), code.begin(), code.begin() + kCode);
  return out;
}

Bytes SignedStore::verified(const std::string& key, Bytes value) const {
  const size_t size = value.size() >= kCode ? value.size() - kCode : 0;
  const Digest code = code_of(secret_, key, text_view(value, size));
  const auto found = text_view(value, value.size()).substr(size);
  if (!same_digest(found, bytes_view(code).substr(0, kCode))) {
    throw c10::DistStoreError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        join_text("entry ", key,
                  " of the store was not written by a rank of this job: its signature is not "
                  "that of TESSERA_JOB_SECRET"));
  }
  value.resize(size);
  return value;
}

void SignedStore::set(const std::string& key, const Bytes& value) {
  store_->set(key, sign(key, value));
}

Bytes SignedStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  // An empty value means "no such key".
  const Bytes before = expected.empty() ? expected : sign(key, expected);
  Bytes now = store_->compareSet(key, before, sign(key, desired));
  return now.empty() ? now : verified(key, std::move(now));
}

Bytes SignedStore::get(const std::string& key) { return verified(key, store_->get(key)); }

}  // namespace tessera::comm
