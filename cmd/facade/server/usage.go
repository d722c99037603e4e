package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

var noLedger = answer.Refuse(http.StatusNotFound, "This installation has no archive, so costs are not recorded")

// usageLineBytes is the estimated size of one usage line in a response. The user's limit on
// responses in memory counts this size for each line.
const usageLineBytes = 256

// usage returns the costs of the user's model calls. If the UserSettings have an owner, the result
// includes the costs of the owner's other UserSettings, because costs are recorded per owner.
func (s *server) usage(ctx context.Context, r request) (any, error) {
	if s.options.Usage == nil {
		return nil, noLedger
	}
	month := r.URL.Query().Get("month")
	if _, err := time.Parse(session.MonthForm, month); month != "" && err != nil {
		return nil, answer.Invalid(rest.Detail{Type: "date_parsing", Loc: rest.Location{"query", "month"},
			Msg: "Input should be a month, such as 2026-01"})
	}
	owner := cmp.Or(r.user.Settings.OwnerName(), string(r.user.UID))
	costs, err := s.options.Usage(ctx, owner, month)
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	if err := r.held.Take(int64(len(costs.Lines)) * usageLineBytes); err != nil {
		return nil, err
	}
	result := rest.Usage{Month: costs.Month, Spent: costs.Spent.String(), Unsettled: costs.Unsettled.String(),
		Reserved: costs.Reserved.String(), Limits: []rest.UsageLimit{}, Lines: []rest.UsageLine{}}
	for _, line := range costs.Lines {
		result.Lines = append(result.Lines, rest.UsageLine{Day: line.Period, Namespace: line.Namespace, Model: line.Model,
			Calls: line.Calls, InputTokens: line.Input, OutputTokens: line.Output, Cost: line.Cost.String()})
	}
	// The archive's clock determines the current day. Limits are shown only for the current month.
	today, _ := time.Parse(session.DayForm, costs.Day)
	if today.Format(session.MonthForm) != costs.Month {
		return result, nil
	}
	effective, err := settings.Effective(ctx, s.cluster, r.user.Settings)
	if err != nil {
		return nil, err
	}
	class, err := s.cluster.Class(ctx, ptr.Deref(effective.Spec.SessionClassName, v1alpha1.DefaultSessionClass))
	if err != nil {
		return nil, cluster.Refusal(ctx, err, nil)
	}
	result.Limits, err = usageLimits(class.Spend, &costs, today)
	return result, err
}

// usageLimits returns the limits of a class, with the costs of the user in the current periods.
func usageLimits(spend *v1alpha1.SpendingLimits, costs *session.SpendUsage, today time.Time) ([]rest.UsageLimit,
	error) {
	limits := []rest.UsageLimit{}
	if spend == nil {
		return limits, nil
	}
	for _, of := range []struct {
		scope string
		limit *v1alpha1.SpendingLimit
	}{{session.ScopeUser, spend.PerUser}, {session.ScopeNamespace, spend.PerNamespace}} {
		if of.limit == nil {
			continue
		}
		parsed, err := session.ParseLimits(of.limit.Day, of.limit.Month)
		if err != nil {
			return nil, fmt.Errorf("read the spending limits: %w", err)
		}
		for _, by := range []struct {
			period      string
			limit, used session.Dollars
		}{{session.PeriodDay, parsed.Day, costs.UsedToday},
			{session.PeriodMonth, parsed.Month, costs.Spent.Plus(costs.Reserved)}} {
			if by.limit == 0 {
				continue
			}
			state := session.NewLimitState(of.scope, by.period, by.limit, by.used, today)
			limit := rest.UsageLimit{Scope: state.Scope, Period: state.Period, Limit: state.Limit.String(),
				Resets: state.Resets}
			if of.scope == session.ScopeUser {
				limit.Used = ptr.To(state.Spent.String())
			}
			limits = append(limits, limit)
		}
	}
	return limits, nil
}
