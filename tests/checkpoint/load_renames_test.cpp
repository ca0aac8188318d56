// A checkpoint whose names differ from those of the state that it is loaded into.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tests/checkpoint/shared_dir.h"
#include "tests/support/ranks.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace load_renames_test {

using test::expect_error;
using test::SharedDir;

TEST(LoadRenames, MayBeRegularExpressions) {
  const SharedDir dir("renames");
  test::run_ranks(2, [&](int) {
    State saved = {{"module.0.weight", at::arange(4.0)}, {"module.1.weight", at::arange(3.0)}};
    save(saved, dir / "ckpt");
    State state = {{"layers.0.w", at::zeros({4})}, {"layers.1.w", at::zeros({3})}};
    EXPECT_THROW(load(state, dir / "ckpt"), Error);
    load(state, dir / "ckpt", {.renames = {{"^module\\.(\\d+)\\.weight$", "layers.$1.w"}}});
    EXPECT_EQ(std::get<at::Tensor>(state.at("layers.0.w")).sum().item<float>(), 6);
    expect_error<InvalidArgument>(
        [&] {
          load(state, dir / "ckpt", {.renames = {{"(", ""}}});
        },
        {"not a regular expression"});
    expect_error<InvalidArgument>(
        [&] {
          load(state, dir / "ckpt", {.renames = {{"\\d", "0"}}});
        },
        {"would both become"});
  });
}

/// Names come from files of others; the matcher of the standard library would exhaust the stack.
TEST(LoadRenames, OfAVeryLongNameAreAnError) {
  const SharedDir dir("long_name");
  test::run_ranks(2, [&](int) {
    save({{std::string(1 << 20, 'n'), at::arange(4.0)}}, dir / "ckpt");
    State state = {{"w", at::zeros({4})}};
    for (const std::string pattern : {"(n|m)*x", "glob:**.x"}) {
      expect_error<InvalidArgument>(
          [&] {
            load(state, dir / "ckpt", {.renames = {{pattern, "y"}}});
          },
          {"a name of 1048576 characters, nnn"});
    }
  });
}

TEST(LoadRenames, MayBeGlobs) {
  const SharedDir dir("globs");
  test::run_ranks(2, [&](int) {
    save({{"m.a.b.0.weight", at::arange(4.0)},
          {"m.a.b.1.weight", at::arange(3.0)},
          {"mxa", at::arange(2.0)}},
         dir / "ckpt");
    State state = {
        {"0-$1.a.b", at::zeros({4})}, {"1-$1.a.b", at::zeros({3})}, {"mxa", at::zeros({2})}};
    // The dot is a dot, a star no dot, and the stars change no places.
    expect_error<InvalidArgument>(
        [&] {
          load(state, dir / "ckpt", {.renames = {{"glob:m.*.weight", "*-$1.a.b"}}});
        },
        {"lacks", "m.a.b.0.weight"});
    load(state, dir / "ckpt",
         {.renames = {{"glob:m.a", "lost"}, {"glob:m.a.b.*.weight", "*-$1.a.b"}}});
    EXPECT_EQ(std::get<at::Tensor>(state.at("0-$1.a.b")).sum().item<float>(), 6);
    EXPECT_EQ(std::get<at::Tensor>(state.at("mxa")).sum().item<float>(), 1);
    State nested = {{"0.a.b", at::zeros({4})}, {"1.a.b", at::zeros({3})}, {"mxa", at::zeros({2})}};
    expect_error<InvalidArgument>(
        [&] {
          load(nested, dir / "ckpt", {.renames = {{"glob:m.*", "*.*"}}});
        },
        {"more stars"});
    State all = {{"n.a.b.0.weight", at::zeros({4})},
                 {"n.a.b.1.weight", at::zeros({3})},
                 {"mxa", at::zeros({2})}};
    load(all, dir / "ckpt", {.renames = {{"glob:m.**", "n.**"}}});
    EXPECT_EQ(std::get<at::Tensor>(all.at("n.a.b.1.weight")).sum().item<float>(), 3);
  });
}

}  // namespace load_renames_test
}  // namespace tessera
