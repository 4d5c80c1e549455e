// How the command reads the texts of hooks.
#include "common/hook_choice.h"

#include <gtest/gtest.h>

#include "brigade/hooks.h"

namespace brigade::tool {
namespace {

TEST(HookChoice, EveryRowOfTheTableWhenNothingIsSaid) {
  const auto all = choose_hooks("");
  EXPECT_EQ(all.size(), hook_table().size());
  for (const std::string& spec : all) EXPECT_NO_THROW(make_hook(spec)) << spec;
}

TEST(HookChoice, AnOptionWithoutAValueBelongsToTheHookBeforeIt) {
  EXPECT_EQ(choose_hooks("int8:flat=1,small,fp16"),
            (std::vector<std::string>{"int8:flat=1,small", "fp16"}));
}

TEST(HookChoice, WhenAHookBeginsToCompress) {
  EXPECT_EQ(steps_before_compression("fp16+powersgd:rank=2"), 1000);
  EXPECT_EQ(steps_before_compression("powersgd:start=7,rank=2"), 7);
  EXPECT_EQ(steps_before_compression("int8"), 0);
  EXPECT_EQ(steps_before_compression("rules:a=powersgd(start=3);b=int8;*=powersgd"), 1000);
  EXPECT_EQ(steps_before_compression("fp16+rules:*=rules(a=powersgd:start=7;*=int8)"), 7);
  EXPECT_EQ(steps_before_compression("rules"), 0);
  EXPECT_EQ(steps_before_compression("auto:among=fp16/powersgd(rank=2,start=9)"), 9);
  EXPECT_EQ(steps_before_compression("auto:least=powersgd"), 0);
  EXPECT_EQ(from_the_first_step("powersgd:start=10,rank=2"), "powersgd:start=0,rank=2");
  EXPECT_EQ(from_the_first_step("fp16+powersgd"), "fp16+powersgd:start=0");
  EXPECT_EQ(from_the_first_step("int8"), "int8");
}

TEST(HookChoice, ARunThatIsOverBeforeItsHookCompressesIsTold) {
  EXPECT_EQ(why_it_never_compresses("powersgd:start=20", 20),
            "powersgd:start=20 averages exactly for its first 20 steps, and this run has "
            "20: it never compresses (start=2 would, after a tenth)");
  EXPECT_EQ(why_it_never_compresses("rules:*bias=int8;*=powersgd", 400),
            "rules:*bias=int8;*=powersgd: powersgd averages exactly for its first 1000 "
            "steps, and this run has 400: it never compresses (start=40 would, after a "
            "tenth)");
  for (const char* spec : {"powersgd:start=19", "int8", "auto"})
    EXPECT_EQ(why_it_never_compresses(spec, 20), "");
}

TEST(HookChoice, ToleranceOfAWrapperIsAddedToItsHooks) {
  EXPECT_NEAR(tolerance_of("fp16+int8"), 1e-3 + 1.5e-2, 1e-12);
  EXPECT_LT(tolerance_of("noop"), 0);
  EXPECT_EQ(base_name("fp16+powersgd:rank=2,start=0"), "powersgd");
}

TEST(HookChoice, RulesAreOneHookAndAsCoarseAsTheCoarsestOfThem) {
  EXPECT_EQ(choose_hooks("fp16,rules:a*=int8;*=powersgd:rank=2,start=3,small+int8(flat=1)"),
            (std::vector<std::string>{"fp16", "rules:a*=int8;*=powersgd:rank=2,start=3",
                                      "small+int8(flat=1)"}));
  EXPECT_EQ(base_name("node+rules:*=fp16+int8"), "rules");
  EXPECT_NEAR(tolerance_of("rules:a*=fp16;*=int8"), 1.5e-2, 1e-12);
  EXPECT_NEAR(tolerance_of("node+rules:*=small+fp16"), 1e-3, 1e-12);
  EXPECT_LT(tolerance_of("rules:a=noop;*=int8"), 0);
  EXPECT_EQ(choose_hooks("powersgd(rank=2)").front(), "powersgd:rank=2,start=0");
  EXPECT_NEAR(tolerance_of("auto"), 1.5e-2, 1e-12);
  EXPECT_NEAR(tolerance_of("auto:least=fp16"), 1e-3, 1e-12);
  EXPECT_NEAR(tolerance_of("auto:among=fp16/powersgd(rank=2,start=0)"), 1, 1e-12);
}

}  // namespace
}  // namespace brigade::tool
