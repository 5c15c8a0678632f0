/* The ending of a family: who collects reports, who decides, what all repeat (ending.hpp).
 *
 * Every rank waits for something that will not come, is gone, or sleeps and may wake up. Those that
 * wait begin when they like, several at once; with CAUSES some of them have found calls that differ.
 * Up to CRASHES of them die at any moment, and what they have sent may be lost. What a sentence says
 * is not modelled: every rank would say another one, so that it is seen if two decide.
 *
 * Time moves by windows, when nothing else can move: messages take less. Checked:
 *   - every live rank that waits ends, and all with one sentence;
 *   - no rank that looks is given up.
 * Faults that must be found: ONCE (the sentence is not told to all before they end with it), NO_RELAY
 * (who begins and then follows another does not pass on what it has heard), NO_ORDER (all that begin
 * decide), NO_TAKEOVER (nobody is given up). */
#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#define BIT(r) (1 << (r))
#define ALL (BIT(N) - 1)

#define RUN 0
#define COLLECT 1
#define TELL 2
#define FOLLOW 3
#define ENDED 4
#define DEAD 5

mtype = { END, REPORT, ABOUT, VERDICT };
chan box[N * N] = [6] of { mtype, byte, byte };  /* kind, of whom, its cause or a sentence */
#define BOX(from, to) box[(from) * N + (to)]

byte st[N];
bool sleeps[N];      /* does not look; it waits for nobody */
bool awoke[N];
byte enders[N];      /* bits: who has begun, as far as this rank knows */
byte differs[N];     /* bits: who of them found calls that differ: they come first */
byte gone[N];        /* bits: whom it has given up */
byte told[N];        /* bits: who has reported, or has begun */
byte lead[N] = N;    /* whom it follows; itself where it collects */
byte passed[N];      /* windows since it entered its state, or heard whom it follows */
byte keeps[N];       /* a sentence that all are to end with */
byte says[N];        /* with which it has ended */
byte crashes = 0;
hidden byte i_, c_;

#define LIVES(r) (st[r] < ENDED)
#define LOOKS(r) (LIVES(r) && !sleeps[r])
#define WAITS(r) (!sleeps[r] && !awoke[r])

inline tell(kind, whose, y) {
  i_ = 0;
  do
  :: i_ < N ->
     if :: i_ != me && i_ != whose && LIVES(i_) -> BOX(me, i_)!kind, whose, y :: else fi;
     i_++
  :: else -> break
  od;
  i_ = 0
}
/* Follows the first of those that have begun; c_ is N if there is none. */
inline follow() {
  i_ = 0; c_ = N;
  do
  :: i_ < N ->
     if
     :: (enders[me] & ~gone[me] & BIT(i_)) &&
        (c_ == N || ((differs[me] & BIT(i_)) && !(differs[me] & BIT(c_)))) -> c_ = i_
     :: else
     fi;
     i_++
  :: else -> break
  od;
  i_ = 0;
#ifdef NO_ORDER
  if :: enders[me] & BIT(me) -> c_ = me :: else fi;
#endif
  if
  :: c_ != lead[me] && c_ < N ->
     lead[me] = c_; passed[me] = 0; st[me] = (c_ == me -> COLLECT : FOLLOW);
#ifndef NO_RELAY
     if
     :: c_ != me && (enders[me] & BIT(me)) -> tell(END, c_, ((differs[me] & BIT(c_)) != 0))
     :: else
     fi
#endif
  :: else
  fi
}
inline begin(cause) {
  enders[me] = enders[me] | BIT(me);
  told[me] = told[me] | BIT(me);
  if :: cause -> differs[me] = differs[me] | BIT(me) :: else fi;
  lead[me] = me; passed[me] = 0; st[me] = COLLECT;
  tell(END, me, cause)
}
inline hear() {
  if
  :: what == END && !(enders[me] & BIT(who)) && st[me] != TELL ->
     enders[me] = enders[me] | BIT(who);
     told[me] = told[me] | BIT(who);
     if :: x -> differs[me] = differs[me] | BIT(who) :: else fi;
     if :: !(enders[me] & BIT(me)) && LIVES(who) -> BOX(me, who)!REPORT, me, 0 :: else fi;
     follow()
  :: what == REPORT -> told[me] = told[me] | BIT(who)
  :: what == ABOUT && st[me] != TELL -> keeps[me] = x
  :: what == VERDICT -> says[me] = x; st[me] = ENDED
  :: else
  fi;
  if :: st[me] == FOLLOW && lead[me] == who -> passed[me] = 0 :: else fi
}
/* What it has sent may be lost, to any of the others. */
inline die() {
  st[me] = DEAD; i_ = 0;
  do
  :: i_ < N ->
     if
     :: true
     :: len(BOX(me, i_)) > 0 ->
        do :: BOX(me, i_)?_, _, _ :: empty(BOX(me, i_)) -> break od
     fi;
     i_++
  :: else -> break
  od;
  i_ = 0
}

#if N == 3
#define OF_ALL(f, me, op) (f(me, 0) op f(me, 1) op f(me, 2))
#else
#define OF_ALL(f, me, op) (f(me, 0) op f(me, 1) op f(me, 2) op f(me, 3))
#endif
#define HAS_MAIL(me, r) (len(BOX(r, me)) > 0)
#define HAS_IT(me, r) (!(told[me] & BIT(r)) || (gone[me] & BIT(r)) || !(BOX(me, r)??[ABOUT, _, _]))
#define FROM(p) :: atomic { LOOKS(me) && len(BOX(p, me)) > 0 -> BOX(p, me)?what, who, x; hear(); what = END; who = 0; x = 0 }

proctype Rank(byte me) {
  mtype what = END;
  byte who = 0, x = 0;
  do
  :: !LIVES(me) -> break
  FROM(0) FROM(1) FROM(2)
#if N > 3
  FROM(3)
#endif
  /* It has heard what has come; more may be on its way. */
  :: atomic { LOOKS(me) && WAITS(me) && st[me] == RUN -> begin(0) }
#ifdef CAUSES
  :: atomic { LOOKS(me) && WAITS(me) && st[me] == RUN -> begin(1) }
#endif
  :: atomic { LOOKS(me) && st[me] == COLLECT && (told[me] == ALL || passed[me] >= 1) ->
     if :: keeps[me] == 0 -> keeps[me] = me + 1 :: else fi;
     st[me] = TELL; passed[me] = 0;
#ifndef ONCE
     tell(ABOUT, me, keeps[me])
#endif
     }
  :: atomic { LOOKS(me) && st[me] == TELL && (OF_ALL(HAS_IT, me, &&) || passed[me] >= 1) ->
     tell(VERDICT, me, keeps[me]); says[me] = keeps[me]; st[me] = ENDED;
     if :: true :: crashes < CRASHES -> crashes++; die() fi }
#ifndef NO_TAKEOVER
  :: atomic { LOOKS(me) && WAITS(me) && st[me] == FOLLOW && passed[me] >= 2 ->
     assert(!LOOKS(lead[me]));
     gone[me] = gone[me] | BIT(lead[me]);
     follow();
     if :: c_ == N -> begin(0) :: else fi }
#endif
  :: atomic { LIVES(me) && sleeps[me] -> sleeps[me] = 0; awoke[me] = 1 }
  :: atomic { LOOKS(me) && WAITS(me) && crashes < CRASHES -> crashes++; die() }
  od
}

#define TIMED(me, r) (LOOKS(r) && st[r] != RUN && passed[r] < 2)
#define MUST_END(me, r) (LIVES(r) && WAITS(r))
#define ONE(a, b) (says[a] == 0 || says[b] == 0 || says[a] == says[b])
proctype Clock() {
  do
  :: atomic { timeout && OF_ALL(TIMED, 0, ||) ->
     i_ = 0;
     do
     :: i_ < N -> if :: TIMED(0, i_) -> passed[i_]++ :: else fi; i_++
     :: else -> break
     od;
     i_ = 0 }
  :: atomic { timeout && !OF_ALL(TIMED, 0, ||) ->
     assert(!OF_ALL(MUST_END, 0, ||));
     break }
  od
}
active proctype Watch() {
#if N == 3
  atomic { !(ONE(0, 1) && ONE(0, 2) && ONE(1, 2)) -> assert(false) }
#else
  atomic { !(ONE(0, 1) && ONE(0, 2) && ONE(1, 2) && ONE(0, 3) && ONE(1, 3) && ONE(2, 3)) -> assert(false) }
#endif
}
init {
  byte r = 0;
  atomic {
    do
    :: r < N ->
       if
       :: true                          /* waits */
       :: st[r] = DEAD
       :: sleeps[r] = 1
       fi;
       r++
    :: else -> break
    od;
    run Clock(); run Rank(0); run Rank(1); run Rank(2);
#if N > 3
    run Rank(3)
#endif
  }
}
