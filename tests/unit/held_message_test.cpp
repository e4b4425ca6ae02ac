// A subscription's message while it is paused: who hands it over, and who goes on behind it.

#include "penstock/client/detail/held_message.h"

#include <doctest/doctest.h>

namespace penstock::inline v0::detail {

using OnBegin = HeldMessage::OnBegin;

TEST_CASE("S8: a message is told at once, or held in a pause and handed over when it goes on") {
  HeldMessage held;
  CHECK(held.Arrived());
  CHECK_FALSE(held.Resume());  // Nothing is held.
  held.Pause();
  CHECK_FALSE(held.Arrived());
  CHECK(held.Resume());
  CHECK_FALSE(held.Resume());  // It is on its way.
  CHECK(held.Begin(false) == OnBegin::kTell);
  CHECK_FALSE(held.Resume());
  CHECK_FALSE(held.Delivered());
  CHECK(held.Arrived());
}

TEST_CASE("S8: a Resume after a delivery that found it paused again posts another") {
  HeldMessage held;
  held.Pause();
  CHECK_FALSE(held.Arrived());
  CHECK(held.Resume());
  held.Pause();
  CHECK(held.Begin(false) == OnBegin::kNothing);
  CHECK(held.Resume());
  CHECK(held.Begin(false) == OnBegin::kTell);
  CHECK_FALSE(held.Delivered());
}

TEST_CASE("S8: a pause and a resume before the posted delivery runs leave it as it is") {
  HeldMessage held;
  held.Pause();
  CHECK_FALSE(held.Arrived());
  CHECK(held.Resume());
  held.Pause();
  CHECK_FALSE(held.Resume());
  CHECK(held.Begin(false) == OnBegin::kTell);
}

TEST_CASE("S8: a stream that ends behind a message waits for it; exactly one goes on") {
  for (const bool posted : {false, true}) {
    CAPTURE(posted);
    HeldMessage held;
    held.Pause();
    CHECK_FALSE(held.Arrived());
    if (posted) CHECK(held.Resume());
    CHECK(held.StreamEnded(false));
    if (!posted) CHECK(held.Resume());
    SUBCASE("handed over") {
      CHECK(held.Begin(false) == OnBegin::kTell);
      CHECK_FALSE(held.Cancelled());  // Met by whoever hands over.
      CHECK(held.Delivered());
    }
    SUBCASE("cancelled before") {
      CHECK_FALSE(held.Cancelled());
      CHECK(held.Begin(true) == OnBegin::kDrive);
      CHECK_FALSE(held.Cancelled());
    }
    SUBCASE("paused again, then cancelled") {
      held.Pause();
      CHECK(held.Begin(false) == OnBegin::kNothing);
      CHECK(held.Cancelled());
      CHECK_FALSE(held.Cancelled());
    }
  }
}

TEST_CASE("S8: without a message, or cancelled, the end of a stream waits for nothing") {
  HeldMessage held;
  CHECK_FALSE(held.StreamEnded(false));
  held.Pause();
  CHECK_FALSE(held.StreamEnded(false));
  CHECK_FALSE(held.Arrived());
  CHECK_FALSE(held.StreamEnded(true));
  CHECK_FALSE(held.Cancelled());
}

TEST_CASE("S8: a cancel drops the message that waits, and a Resume after it posts nothing") {
  HeldMessage held;
  held.Pause();
  CHECK_FALSE(held.Arrived());
  bool drives = false;
  SUBCASE("held") { CHECK_FALSE(held.Cancelled()); }
  SUBCASE("held behind the end of its stream") {
    CHECK(held.StreamEnded(false));
    CHECK(held.Cancelled());
    drives = true;
  }
  SUBCASE("the stream ends after the cancel") {
    CHECK_FALSE(held.StreamEnded(true));
    drives = true;
  }
  SUBCASE("posted") {
    CHECK(held.Resume());
    CHECK_FALSE(held.Cancelled());
    CHECK(held.Begin(true) == OnBegin::kNothing);
  }
  SUBCASE("posted behind the end of its stream") {
    CHECK(held.Resume());
    CHECK(held.StreamEnded(false));
    CHECK_FALSE(held.Cancelled());
    CHECK(held.Begin(true) == OnBegin::kDrive);
    drives = true;
  }
  CHECK_FALSE(held.Resume());
  // One party drives, and the end of the stream waits for nothing.
  if (!drives) CHECK_FALSE(held.StreamEnded(true));
  CHECK_FALSE(held.Cancelled());
}

TEST_CASE("S8: a stream that ends while its message is being handed over waits for that, cancelled or not") {
  HeldMessage held;
  held.Pause();
  CHECK_FALSE(held.Arrived());
  CHECK(held.Resume());
  CHECK(held.Begin(false) == OnBegin::kTell);
  CHECK(held.StreamEnded(true));
  CHECK(held.Delivered());
}

}  // namespace penstock::inline v0::detail
