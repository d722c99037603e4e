package store

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// ledger contains the costs and reservations of one owner in one month. Its methods are pure: they
// read neither a clock nor the bucket.
type ledger struct {
	Owner string `json:"owner"`
	// Version rises with each write.
	Version int64 `json:"version"`
	// Processes contains the latest process of each Conversation, by UID.
	Processes map[string]*process `json:"processes,omitempty"`
	// Ended contains the costs of the processes that have ended, by day, namespace and model.
	Ended map[string]map[string]map[string]counts `json:"ended,omitempty"`
	// Noticed contains the notices that sessions have received, so that no notice is sent twice. A
	// notice says that the costs of a period exceed the soft threshold of a limit.
	Noticed map[string]bool `json:"noticed,omitempty"`
}

// process is a process of a session. It is identified by its attempt number and its run number.
type process struct {
	Namespace string `json:"namespace,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Run       int64  `json:"run,omitempty"`
	Sequence  int64  `json:"sequence"`
	// Day is the day of the last grant. Reserved contains the reservations, by the day of their
	// grant.
	Day      string                     `json:"day,omitempty"`
	Reserved map[string]session.Dollars `json:"reserved,omitempty"`
	// Spent contains the reported costs, by day and model.
	Spent map[string]map[string]counts `json:"spent,omitempty"`
	// Ended is set after the last report of the process. From then on, the ledger counts the costs
	// of this process together with those of all other ended processes.
	Ended bool `json:"ended,omitempty"`
}

// counts is the usage of a model.
type counts struct {
	Calls  int64           `json:"calls,omitempty"`
	Input  int64           `json:"input,omitempty"`
	Output int64           `json:"output,omitempty"`
	Cost   session.Dollars `json:"cost,omitzero"`
}

func (c counts) plus(other counts) counts {
	return counts{c.Calls + other.Calls, c.Input + other.Input, c.Output + other.Output, c.Cost.Plus(other.Cost)}
}

// max compares each count of c and l, and returns the larger values. Reports are cumulative, so a
// smaller value comes from an earlier report.
func (c counts) max(l session.SpentLine) counts {
	return counts{max(c.Calls, l.Calls), max(c.Input, l.Input), max(c.Output, l.Output), max(c.Cost, l.Cost)}
}

// spender is the process that sends a report.
type spender struct {
	uid     string
	attempt int
	session.SpendClaims
}

// settle adds the costs of a report to the ledger; it skips costs of other months. isNew is false
// if the report is repeated or late. first is true if this is the first report of its process. A
// new report also reduces the reservations of other days to the cost of the calls that are still in
// flight, because new calls use only today's reservation.
func (l *ledger) settle(by spender, report session.SpendReport, month, today string) (p *process, isNew, first bool,
	err error) {
	p = l.Processes[by.uid]
	if p != nil && (by.attempt < p.Attempt || by.attempt == p.Attempt && report.Run < p.Run) {
		return nil, false, false, ErrSuperseded
	}
	if first = p == nil || by.attempt > p.Attempt || report.Run > p.Run; first {
		l.end(p)
		p = &process{Namespace: by.Namespace, Attempt: by.attempt, Run: report.Run}
		if l.Processes == nil {
			l.Processes = map[string]*process{}
		}
		l.Processes[by.uid] = p
	}
	if p.Ended { // a final report is repeated if its answer was lost
		if !report.Final {
			err = ErrSuperseded
		}
		return p, false, false, err
	}
	isNew = report.Sequence > p.Sequence
	for _, line := range report.Spent {
		if monthOf(line.Period) == month {
			p.add(line)
		}
	}
	if isNew {
		p.Sequence = report.Sequence
		for day, reserved := range p.Reserved {
			if day != today {
				p.reserve(day, min(reserved, report.Open[day]))
			}
		}
	}
	return p, isNew, first, nil
}

func (p *process) add(line session.SpentLine) {
	if p.Spent == nil {
		p.Spent = map[string]map[string]counts{}
	}
	if p.Spent[line.Period] == nil {
		p.Spent[line.Period] = map[string]counts{}
	}
	model := boundedModel(p.Spent[line.Period], line.Model)
	p.Spent[line.Period][model] = p.Spent[line.Period][model].max(line)
}

func (p *process) reserve(day string, amount session.Dollars) {
	if p.Reserved == nil {
		p.Reserved = map[string]session.Dollars{}
	}
	if p.Reserved[day] = amount; amount == 0 {
		delete(p.Reserved, day)
	}
}

// end moves the costs of a process to the costs of ended processes. A remaining reservation counts
// as spent, because calls may have been in flight when the process was killed.
func (l *ledger) end(p *process) {
	if p == nil {
		return
	}
	for day, models := range p.Spent {
		for model, c := range models {
			l.addEnded(day, p.Namespace, model, c)
		}
	}
	for day, reserved := range p.Reserved {
		l.addEnded(day, p.Namespace, session.UnsettledModel, counts{Cost: reserved})
	}
	*p = process{Attempt: p.Attempt, Run: p.Run, Sequence: p.Sequence, Day: p.Day, Ended: true}
}

// endedDays is the number of days for which the ledger remembers an ended process. During these
// days, a late report of the process adds no costs.
const endedDays = 2

// forgetEnded removes the ended processes whose last grant was before the given day. Their costs
// stay.
func (l *ledger) forgetEnded(before string) {
	maps.DeleteFunc(l.Processes, func(_ string, p *process) bool { return p.Ended && p.Day != "" && p.Day < before })
}

func (l *ledger) addEnded(day, namespace, model string, c counts) {
	if l.Ended == nil {
		l.Ended = map[string]map[string]map[string]counts{}
	}
	if l.Ended[day] == nil {
		l.Ended[day] = map[string]map[string]counts{}
	}
	if l.Ended[day][namespace] == nil {
		l.Ended[day][namespace] = map[string]counts{}
	}
	model = boundedModel(l.Ended[day][namespace], model)
	l.Ended[day][namespace][model] = l.Ended[day][namespace][model].plus(c)
}

const (
	// maxDayModels limits the number of different models per day, because an endpoint may accept any
	// model name.
	maxDayModels = 100
	otherModels  = "(other)"
)

// boundedModel returns the map key for the costs of a model. This is the model's name, or
// otherModels if the map does not contain the model and already has maxDayModels entries.
// UnsettledModel is never replaced.
func boundedModel(models map[string]counts, model string) string {
	if _, found := models[model]; !found && len(models) >= maxDayModels && model != session.UnsettledModel {
		return otherModels
	}
	return model
}

// lines() calls visit() for all costs in the ledger.
func (l *ledger) lines(visit func(day, namespace, model string, c counts)) {
	for day, namespaces := range l.Ended {
		for namespace, models := range namespaces {
			for model, c := range models {
				visit(day, namespace, model, c)
			}
		}
	}
	for _, p := range l.Processes {
		for day, models := range p.Spent {
			for model, c := range models {
				visit(day, p.Namespace, model, c)
			}
		}
	}
}

func (l *ledger) spent(namespace string) (sum session.Dollars) {
	l.lines(func(_, of, _ string, c counts) {
		if of == namespace {
			sum = sum.Plus(c.Cost)
		}
	})
	return sum
}

// used returns the costs and reservations by day. An empty namespace means all namespaces.
func (l *ledger) used(namespace string) map[string]session.Dollars {
	days := map[string]session.Dollars{}
	l.lines(func(day, of, _ string, c counts) {
		if namespace == "" || namespace == of {
			days[day] = days[day].Plus(c.Cost)
		}
	})
	for _, p := range l.Processes {
		for day, reserved := range p.Reserved {
			if namespace == "" || namespace == p.Namespace {
				days[day] = days[day].Plus(reserved)
			}
		}
	}
	return days
}

func sumOf(days map[string]session.Dollars) (sum session.Dollars) {
	for _, amount := range days {
		sum = sum.Plus(amount)
	}
	return sum
}

// amounts are the costs and reservations of a day and of its month.
type amounts struct{ day, month session.Dollars }

// grant decides about the reservation of a process. The parameter others contains the amounts of
// the namespace's other owners.
func (l *ledger) grant(p *process, by spender, report session.SpendReport, now time.Time,
	others amounts) session.SpendGrant {
	today := now.Format(session.DayForm)
	p.Day = today
	l.forgetEnded(now.AddDate(0, 0, -endedDays).Format(session.DayForm))
	p.reserve(today, 0)
	ofUser, ofNamespace := l.used(""), l.used(by.Namespace)
	bounds := []bound{
		{session.ScopeUser, session.PeriodMonth, by.PerUser.Month, sumOf(ofUser)},
		{session.ScopeUser, session.PeriodDay, by.PerUser.Day, ofUser[today]},
		{session.ScopeNamespace, session.PeriodMonth, by.PerNamespace.Month, sumOf(ofNamespace).Plus(others.month)},
		{session.ScopeNamespace, session.PeriodDay, by.PerNamespace.Day, ofNamespace[today].Plus(others.day)},
	}
	bounds = slices.DeleteFunc(bounds, func(b bound) bool { return b.limit == 0 })
	granted := session.SpendGrant{Sequence: report.Sequence, Day: today, Reserved: report.Need}
	full := slices.IndexFunc(bounds, func(b bound) bool { return b.used.Plus(report.Need) > b.limit })
	roomy := !slices.ContainsFunc(bounds, func(b bound) bool { return b.used.Plus(report.Want) > b.limit/2 })
	// Calls in flight already use an earlier grant. Their costs stay reserved even if a limit is
	// reached.
	inFlight := min(report.Need, report.Open[today])
	switch {
	case full >= 0 && report.Need > inFlight:
		granted.Reserved, granted.Refusal = inFlight, bounds[full].state(now)
	case full < 0 && roomy && report.Need > 0:
		granted.Reserved = max(report.Need, report.Want)
	}
	p.reserve(today, granted.Reserved)
	for _, b := range bounds {
		key := noticeKey(b.scope, b.period, today, by.Namespace)
		if state := b.state(now); by.Soft > 0 && !l.Noticed[key] && granted.Notice == nil &&
			b.used.Plus(granted.Reserved) > b.limit/100*session.Dollars(by.Soft) {
			state.Spent = b.used.Plus(granted.Reserved)
			granted.Notice = state
			if l.Noticed == nil {
				l.Noticed = map[string]bool{}
			}
			l.Noticed[key] = true
		}
	}
	return granted
}

// withdraw removes a notice from Noticed. Store.reserve calls withdraw before it decides again,
// because the notice of its earlier decision was not sent.
func (l *ledger) withdraw(notice *session.LimitState, day, namespace string) {
	if notice != nil {
		delete(l.Noticed, noticeKey(notice.Scope, notice.Period, day, namespace))
	}
}

// noticeKey is the key of a limit and its period in ledger.Noticed.
func noticeKey(scope, period, day, namespace string) string {
	key := scope + " " + period
	if period == session.PeriodDay {
		key += " " + day
	}
	if scope == session.ScopeNamespace {
		key += " " + namespace
	}
	return key
}

// repeated returns the answer to a repeated or late report: the stored reservation.
func (l *ledger) repeated(p *process, report session.SpendReport) session.SpendGrant {
	return session.SpendGrant{Sequence: report.Sequence, Day: p.Day, Reserved: p.Reserved[p.Day]}
}

// bound is a limit and the amount that counts towards it.
type bound struct {
	scope, period string
	limit, used   session.Dollars
}

func (b bound) state(now time.Time) *session.LimitState {
	return session.NewLimitState(b.scope, b.period, b.limit, b.used, now)
}

// namespaceLedger contains the amounts of all owners in a namespace in one month. It is derived
// from the owners' ledgers.
type namespaceLedger struct {
	// Owners maps the hash of an owner to the amounts of the owner.
	Owners map[string]ownerAmounts `json:"owners"`
}

// ownerAmounts are the costs and reservations of one owner in a namespace.
type ownerAmounts struct {
	Owner string `json:"owner"`
	// Version is the version of the owner's ledger.
	Version int64           `json:"version"`
	Month   session.Dollars `json:"month,omitzero"`
	// Days contains the amounts of the last keptDays days that have costs or reservations.
	Days map[string]session.Dollars `json:"days,omitempty"`
}

// keptDays limits the days in ownerAmounts. At least two days are needed: around midnight, the
// clocks of replicas may show different days.
const keptDays = 3

// amountsIn returns the amounts of the ledger's owner in a namespace.
func (l *ledger) amountsIn(namespace string) ownerAmounts {
	days := l.used(namespace)
	kept := ownerAmounts{Owner: l.Owner, Version: l.Version, Month: sumOf(days)}
	names := slices.Sorted(maps.Keys(days))
	for _, day := range names[:max(0, len(names)-keptDays)] {
		delete(days, day)
	}
	kept.Days = days
	return kept
}

// amountsExcept returns the amounts of all owners, except the owner with this hash.
func (n *namespaceLedger) amountsExcept(hash, today string) (sum amounts) {
	for of, owner := range n.Owners {
		if of != hash {
			sum.day, sum.month = sum.day.Plus(owner.Days[today]), sum.month.Plus(owner.Month)
		}
	}
	return sum
}

func (a amounts) within(limits session.SpendLimits) bool {
	return (limits.Day == 0 || a.day <= limits.Day) && (limits.Month == 0 || a.month <= limits.Month)
}

func monthOf(day string) string { return day[:strings.LastIndexByte(day, '-')] }
