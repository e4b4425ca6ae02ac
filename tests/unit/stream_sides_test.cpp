#include "penstock/client/detail/stream_sides.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace penstock;
using penstock::detail::ReadSide;
using penstock::detail::WriteSide;

TEST_CASE("S9: a read that the user posts from OnReadDone goes to gRPC as it is, and its message is told at once") {
  ReadSide read;
  CHECK(read.Asked() == ReadSide::OnAsk::kWait);
  CHECK(read.AttemptStarted());
  for (int message = 0; message < 3; ++message) {
    CHECK(read.Arrived() == ReadSide::OnArrival::kTell);
    CHECK(read.Asked() == ReadSide::OnAsk::kWait);
    CHECK(read.Told());
  }
  CHECK(read.state() == ReadSide::State::kWanted);
}

TEST_CASE("S10: a second read before the first is done is refused in every state that has one") {
  ReadSide read;
  CHECK(read.Asked() == ReadSide::OnAsk::kWait);
  CHECK(read.Asked() == ReadSide::OnAsk::kBusy);  // before the attempt
  read.AttemptStarted();
  CHECK(read.Asked() == ReadSide::OnAsk::kBusy);  // at gRPC
  CHECK(read.Arrived() == ReadSide::OnArrival::kTell);
  CHECK(read.Asked() == ReadSide::OnAsk::kWait);
  CHECK(read.Asked() == ReadSide::OnAsk::kBusy);  // from OnReadDone, twice
}

TEST_CASE("S10: one message is kept for a user who has not asked, and no read is posted behind it") {
  ReadSide read;
  CHECK_FALSE(read.AttemptStarted());
  CHECK(read.state() == ReadSide::State::kPosted);
  CHECK(read.Arrived() == ReadSide::OnArrival::kKeep);
  CHECK(read.state() == ReadSide::State::kKept);
  CHECK(read.Asked() == ReadSide::OnAsk::kHop);
  CHECK(read.Asked() == ReadSide::OnAsk::kBusy);  // on its way
  read.Hopped();
  CHECK_FALSE(read.Told());  // posted for nobody
  CHECK(read.state() == ReadSide::State::kPosted);
  CHECK(read.Asked() == ReadSide::OnAsk::kWait);
  CHECK(read.state() == ReadSide::State::kWanted);
}

TEST_CASE("S2: what was asked of a failed attempt is asked of the next, and told as over only at the end") {
  SUBCASE("with the user waiting") {
    ReadSide read;
    read.Asked();
    read.AttemptStarted();
    read.AttemptFailed();
    CHECK(read.state() == ReadSide::State::kOffAsked);
    CHECK(read.AttemptStarted());
    CHECK(read.Ended());
    CHECK(read.Asked() == ReadSide::OnAsk::kEnded);
    CHECK_FALSE(read.Ended());
  }
  SUBCASE("with nobody waiting") {
    ReadSide read;
    read.AttemptStarted();
    read.AttemptFailed();
    CHECK(read.state() == ReadSide::State::kOff);
    CHECK_FALSE(read.Ended());
  }
  SUBCASE("a user who asks between two attempts") {
    ReadSide read;
    read.AttemptStarted();
    read.AttemptFailed();
    CHECK(read.Asked() == ReadSide::OnAsk::kWait);
    CHECK(read.AttemptStarted());
  }
}

TEST_CASE("S10: one write at a time; the second, one after the half-close and one after the end are refused") {
  WriteSide write;
  CHECK(write.Asked(false) == StreamStart::kStarted);
  CHECK(write.Asked(false) == StreamStart::kBusy);
  CHECK(write.IssueWrite());
  CHECK_FALSE(write.IssueWrite());
  CHECK(write.Asked(false) == StreamStart::kBusy);
  CHECK(write.Written(true, true));
  CHECK(write.Asked(false) == StreamStart::kStarted);
  CHECK(write.IssueWrite());
  CHECK(write.Written(true, true));
  CHECK(write.WritesDoneAsked() == StreamStart::kStarted);
  CHECK(write.Asked(false) == StreamStart::kHalfClosed);
  CHECK(write.WritesDoneAsked() == StreamStart::kHalfClosed);
  CHECK(write.IssueHalfClose());
  CHECK_FALSE(write.IssueHalfClose());
  CHECK(write.HalfClosed(true, true));
  const auto untold = write.Ended();
  CHECK_FALSE(untold.write);
  CHECK_FALSE(untold.half_close);
  CHECK(write.Asked(false) == StreamStart::kEnded);
  CHECK(write.WritesDoneAsked() == StreamStart::kEnded);
}

TEST_CASE("S10: a last write closes the side by itself") {
  WriteSide write;
  CHECK(write.Asked(true) == StreamStart::kStarted);
  CHECK(write.WritesDoneAsked() == StreamStart::kHalfClosed);
  CHECK(write.IssueWrite());
  CHECK_FALSE(write.IssueHalfClose());
  CHECK(write.Written(true, false));
  CHECK(write.Asked(false) == StreamStart::kHalfClosed);
}

TEST_CASE("S10: a half-close asked while a write is in flight waits for it") {
  WriteSide write;
  CHECK(write.Asked(false) == StreamStart::kStarted);
  CHECK(write.WritesDoneAsked() == StreamStart::kStarted);
  CHECK_FALSE(write.IssueHalfClose());
  CHECK(write.IssueWrite());
  CHECK_FALSE(write.IssueHalfClose());
  CHECK(write.Written(true, false));
  CHECK(write.IssueHalfClose());
}

TEST_CASE("S2: a first write that failed before the opening is written again, not told") {
  WriteSide write;
  CHECK(write.Asked(false) == StreamStart::kStarted);
  CHECK(write.WritesDoneAsked() == StreamStart::kStarted);
  CHECK(write.IssueWrite());
  CHECK_FALSE(write.Written(false, false));
  CHECK(write.Asked(false) == StreamStart::kHalfClosed);
  write.AttemptFailed();
  CHECK(write.IssueWrite());
  CHECK(write.Written(true, false));
  CHECK(write.IssueHalfClose());
  CHECK_FALSE(write.HalfClosed(false, false));
  write.AttemptFailed();
  CHECK(write.IssueHalfClose());
  CHECK(write.HalfClosed(true, false));
}

TEST_CASE("S2: what was not told of a failed opening is told once, at the end") {
  WriteSide write;
  write.Asked(false);
  write.WritesDoneAsked();
  write.IssueWrite();
  CHECK_FALSE(write.Written(false, false));
  auto untold = write.Ended();
  CHECK(untold.write);
  CHECK(untold.half_close);
}

TEST_CASE("S4: a write that fails on an open stream is told as it fails") {
  WriteSide write;
  write.Asked(false);
  write.IssueWrite();
  CHECK(write.Written(false, true));
  CHECK_FALSE(write.Ended().write);
}

TEST_CASE("S4: each answer to a start has a name of its own") {
  std::set<std::string> names;
  for (const StreamStart start : {StreamStart::kStarted, StreamStart::kBusy, StreamStart::kHalfClosed, StreamStart::kEnded,
                                  StreamStart::kNotOpen, StreamStart::kTooLarge}) {
    names.insert(Name(start));
  }
  CHECK(names.size() == 6);
  CHECK_FALSE(names.contains("unknown"));
  CHECK(Name(static_cast<StreamStart>(99)) == std::string("unknown"));
}
