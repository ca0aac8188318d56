#include "tessera/liveness/sha256.h"

#include <gtest/gtest.h>

namespace tessera::comm {
namespace sha256_test {

std::string hex(const Digest& digest) { return hex_text(bytes_view(digest)); }

TEST(Sha256, MatchesTheExamplesOfTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/// Every length of padding: the digest of the digests of 0 to 130 zeros, by Python's hashlib.
TEST(Sha256, PadsMessagesOfEveryLength) {
  std::string all;
  for (size_t n = 0; n <= 130; ++n) all += bytes_view(sha256(std::string(n, '\0')));
  EXPECT_EQ(hex(sha256(all)), "d6e99a52e4f306ac462a8669cfa9744fc9ac0cd54f1c1c92b91d2e3257397ead");
}

TEST(Sha256, HmacMatchesTheExamplesOfRfc4231) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256, DigestsAreComparedInFull) {
  const Digest digest = sha256("a");
  Digest other = digest;
  EXPECT_TRUE(same_digest(bytes_view(digest), bytes_view(other)));
  other.back() ^= 1;
  EXPECT_FALSE(same_digest(bytes_view(digest), bytes_view(other)));
  EXPECT_FALSE(same_digest(bytes_view(digest), bytes_view(digest).substr(1)));
}

}  // namespace sha256_test
}  // namespace tessera::comm
